"""Pipelines: the way from prompts to an endpoint as one resumable object."""
