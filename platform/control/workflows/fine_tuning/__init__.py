"""OpenAI's fine-tuning API for training speculators: the model itself does not change, it answers faster."""
