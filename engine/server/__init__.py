"""OpenAI-compatible HTTP server over one engine: `python -m engine.server`."""
