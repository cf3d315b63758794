"""Queries for rollouts."""

from django.db.models import QuerySet

from control.core.api.lookup import one_of
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout

ACTIVE = (Rollout.Status.STARTING, Rollout.Status.CANARY, Rollout.Status.PROMOTING)


def rollouts_list(deployment: Deployment) -> QuerySet[Rollout]:
    return Rollout.objects.filter(deployment=deployment)


def rollout_get(deployment: Deployment, rollout_id: str) -> Rollout:
    """Raises: ApiError: 404, also for a rollout of another deployment."""
    return one_of(rollouts_list(deployment), rollout_id, kind="rollout", param="rollout_id")


def rollouts_active() -> QuerySet[Rollout]:
    return Rollout.objects.filter(status__in=ACTIVE).select_related(
        "deployment__base_model", "canary", "speculator", "previous"
    )
