"""Quotes: estimates of what a model's answers to a dataset will cost, and caps on that cost."""
