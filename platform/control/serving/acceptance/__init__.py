"""Watches the acceptance length of deployments, and reports when it has dropped."""
