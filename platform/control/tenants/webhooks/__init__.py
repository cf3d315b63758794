"""Tells customers of events: endpoints, signed deliveries, retries."""
