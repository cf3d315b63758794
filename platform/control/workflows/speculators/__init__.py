"""The API of speculators, and their export to and import from the formats of other engines."""
