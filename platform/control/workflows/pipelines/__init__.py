"""Prompts to endpoint as one resumable object."""
