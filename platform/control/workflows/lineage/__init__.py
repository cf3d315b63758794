"""Lineage: from which objects an object was made, and which were made from it."""
