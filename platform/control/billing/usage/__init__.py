"""Usage and its costs: tokens are counted by minute, API key and model."""
