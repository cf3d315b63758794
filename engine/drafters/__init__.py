"""Drafters propose tokens; the engine alone decides what is kept."""
