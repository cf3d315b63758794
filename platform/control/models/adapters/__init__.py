"""LoRA adapters that customers bring: checked once, served by deployments beside the model itself."""
