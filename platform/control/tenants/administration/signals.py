"""Signals that the administration of API keys sends to the rooms above."""

from django.dispatch import Signal

# It is sent with `organization` and `deployment_ids` before a key is restricted to these deployments. A receiver
# raises ApiError 404 for a deployment that the organization does not have.
key_restricting = Signal()
