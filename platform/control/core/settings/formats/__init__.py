"""How times are written, by language."""
