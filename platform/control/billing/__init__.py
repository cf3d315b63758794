"""Metered usage, prices and spend caps."""
