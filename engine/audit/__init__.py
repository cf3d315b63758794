"""Audits: the engine re-scores an answer that was given elsewhere and names the first token that differs."""
