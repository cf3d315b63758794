"""Speculators judged on held-out prompts, and signed certificates of what was found."""
