"""Starting child processes: their environment, their ports, and their end with their owner."""
