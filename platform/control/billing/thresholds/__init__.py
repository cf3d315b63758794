"""Thresholds of spending: members and webhooks are told once in each month in which a threshold is reached."""
