"""Quotes: the estimated cost of a model's answers to a dataset, from its token count and a pilot on a few rows."""
