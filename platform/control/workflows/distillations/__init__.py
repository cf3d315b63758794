"""What a model says to many prompts, kept as training data: a batch under another name."""
