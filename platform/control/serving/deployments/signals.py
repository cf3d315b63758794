"""Signals of deployments, for apps that `deployments` must not import."""

from django.dispatch import Signal

# Sent with `deployment_id`, after the commit, when a deployment became ready or has failed for good.
deployment_settled = Signal()
