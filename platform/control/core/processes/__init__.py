"""Child processes: their environment and ports, and how they end together with their owner."""
