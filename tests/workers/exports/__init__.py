"""Speculators in the formats of other engines."""
