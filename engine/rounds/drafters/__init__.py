"""Drafters whose whole loop runs on the device."""
