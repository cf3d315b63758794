"""LoRA adapters of the target model."""
