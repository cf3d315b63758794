"""Recognisers of personal data and secrets in texts. They import neither Django nor a library that runs models."""
