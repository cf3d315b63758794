"""Authentication by API key, rate limits and the base class of API views."""
