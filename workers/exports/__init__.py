"""Speculators in the formats of other engines, both ways. Standard library only: the API uses it."""
