"""Exports speculators to the formats of other engines, and imports them. Standard library only, for use by the API."""
