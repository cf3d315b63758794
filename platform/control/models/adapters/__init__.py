"""LoRA adapters that customers upload. Deployments serve them together with the base model."""
