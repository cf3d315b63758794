"""Signals of spend caps, for apps that `spending` must not import."""

from django.dispatch import Signal

# Sent with `organization_id` in the transaction that changes or removes a cap: paused jobs may be able to resume.
spend_cap_lifted = Signal()
