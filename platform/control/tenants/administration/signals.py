"""What the administration of keys asks the rooms above."""

from django.dispatch import Signal

# Sent with `organization` and `deployment_ids` before a key is restricted to these deployments. A receiver raises
# ApiError 404 for a deployment that the organization does not have.
key_restricting = Signal()
