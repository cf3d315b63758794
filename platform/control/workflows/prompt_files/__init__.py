"""The rows of a prompts file: reading lines, checking rows, and splitting off held-out rows."""
