"""Evaluations of speculators on held-out prompts, and signed certificates of the results."""
