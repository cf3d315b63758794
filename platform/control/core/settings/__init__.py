"""Settings: base, embedded (default) and production."""
