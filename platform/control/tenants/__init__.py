"""Organizations and their API keys, authorization, limits, the audit log, events and webhooks."""
