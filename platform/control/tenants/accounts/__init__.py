"""Organizations, users, members and API keys."""
