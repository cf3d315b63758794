"""GPU work and its supervision."""
