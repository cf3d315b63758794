"""From an API key to an organization: authentication, rate limits and the base of all API views."""
