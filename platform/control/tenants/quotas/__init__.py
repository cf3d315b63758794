"""Limits on what one organization may use at once."""
