"""Organizations and their keys, who may see and do what, the audit log, events and webhooks."""
