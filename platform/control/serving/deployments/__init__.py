"""Dedicated endpoints: desired state, observed state, the supervisor between them."""
