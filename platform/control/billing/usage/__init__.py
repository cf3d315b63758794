"""What was used and what it costs: tokens counted by minute, key and model."""
