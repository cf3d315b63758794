"""Dedicated endpoints: their desired and observed states, and the supervisor that establishes the desired state."""
