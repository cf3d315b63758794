"""Captured requests: if the customer opts in, requests to an endpoint are kept for some hours as training prompts."""
