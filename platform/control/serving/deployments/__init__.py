"""Dedicated endpoints: desired state, observed state, and the supervisor that brings the two together."""
