"""The rows of a prompts file: reading lines, checking rows, and splitting off those that are held out."""
