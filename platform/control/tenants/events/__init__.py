"""What happened in an organization, in one order: the feed behind /v1/events and webhooks."""
