"""Plumbing without a domain: settings, the shape of the API, storage, child processes, logs and traces."""
