"""Measures the gateway alone, with a pretended engine."""
