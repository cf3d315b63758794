"""Speculators that leave for other engines, and those that come from there."""
