"""The operators' web admin."""
