"""Shared parts of all API routes: errors, JSON, pagination, request ids and middleware."""
