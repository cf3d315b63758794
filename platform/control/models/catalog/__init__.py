"""Base models and the speculators trained for them."""
