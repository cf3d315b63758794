"""What spend caps announce to the rooms above."""

from django.dispatch import Signal

# Sent with `organization_id` in the transaction that raises or removes a cap: paused work may be able to go on.
spend_cap_lifted = Signal()
