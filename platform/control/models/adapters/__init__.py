"""LoRA adapters that customers upload: they are checked once, and deployments serve them beside the base model."""
