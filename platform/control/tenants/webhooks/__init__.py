"""Webhooks: endpoints, signed deliveries of events, and retries."""
