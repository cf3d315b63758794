"""Readers of rollouts."""

from django.db.models import QuerySet

from control.api.errors import ApiError
from control.deployments.models import Deployment
from control.rollouts.models import Rollout

ACTIVE = (Rollout.Status.STARTING, Rollout.Status.CANARY, Rollout.Status.PROMOTING)


def rollouts_list(deployment: Deployment) -> QuerySet[Rollout]:
    return Rollout.objects.filter(deployment=deployment)


def rollout_get(deployment: Deployment, rollout_id: str) -> Rollout:
    """Raises: ApiError: 404, also for that of another deployment."""
    rollout = rollouts_list(deployment).filter(pk=rollout_id).first()
    if rollout is None:
        raise ApiError(404, f"No such rollout: {rollout_id[:80]!r}.", "rollout_not_found", "rollout_id")
    return rollout


def rollouts_active() -> QuerySet[Rollout]:
    return Rollout.objects.filter(status__in=ACTIVE).select_related(
        "deployment__base_model", "canary", "speculator", "previous"
    )
