"""Tests of exporting speculators to the formats of other engines, and of importing them."""
