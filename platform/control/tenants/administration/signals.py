"""Signals of the administration of API keys, for apps that `administration` must not import."""

from django.dispatch import Signal

# Sent with `organization` and `deployment_ids` before a key is restricted to these deployments. The receiver raises
# ApiError 404 for a deployment that the organization does not have.
key_restricting = Signal()
