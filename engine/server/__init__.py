"""OpenAI-compatible HTTP server for one engine: `python -m engine.server`."""
