"""Signals of deployments, received by rooms that import this one."""

from django.dispatch import Signal

# Sent with `deployment_id`, after the commit, when a deployment became ready or has failed for good.
deployment_settled = Signal()
