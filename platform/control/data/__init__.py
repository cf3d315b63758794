"""Customers' files and multi-part uploads."""
