"""Signals that spend caps send to the rooms above."""

from django.dispatch import Signal

# It is sent with `organization_id` in the transaction that raises or removes a cap: paused jobs may be able to resume.
spend_cap_lifted = Signal()
