"""Quotes: estimates of what answers to a dataset, or a pipeline with its rows, will cost, and caps on that cost."""
