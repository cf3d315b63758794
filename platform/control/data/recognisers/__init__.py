"""Recognisers of personal data and secrets in texts. They import neither Django nor anything of a model."""
