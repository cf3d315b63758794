"""Limits on the resources that one organization may use at once."""
