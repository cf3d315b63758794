"""Drafters propose tokens; the engine decides which of them are accepted."""
