"""Speculators in the formats of other engines, export and import. Standard library only: the API uses it."""
