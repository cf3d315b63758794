"""Files that customers uploaded or jobs produced."""
