"""Measures what one organization at its worst costs another."""
