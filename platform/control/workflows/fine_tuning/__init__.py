"""OpenAI's fine-tuning routes over the training of speculators: the model stays as it is, and answers faster."""
