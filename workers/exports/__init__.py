"""Exports speculators to the formats of other engines, and imports them. The API uses it: standard library only."""
