"""Queries for rollouts."""

from django.db.models import QuerySet

from control.core.api.lookup import one_of
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout

# The gateways measure requests to deployments whose rollout has one of these states.
MEASURED = (Rollout.Status.CANARY, Rollout.Status.WATCHING)
ACTIVE = (
    Rollout.Status.STARTING,
    Rollout.Status.CANARY,
    Rollout.Status.PROMOTING,
    Rollout.Status.WATCHING,
)


def rollouts_list(deployment: Deployment) -> QuerySet[Rollout]:
    return Rollout.objects.filter(deployment=deployment)


def rollout_get(deployment: Deployment, rollout_id: str) -> Rollout:
    """Raises: ApiError: 404, also for a rollout of another deployment."""
    return one_of(rollouts_list(deployment), rollout_id, kind="rollout", param="rollout_id")


def rollout_measured(deployment: Deployment) -> Rollout | None:
    """Returns the rollout for which gateways measure the deployment's requests, if there is one."""
    rows = Rollout.objects.filter(deployment=deployment, status__in=MEASURED)
    return rows.select_related("canary").first()


def rollout_is_in_trial(organization_id: str, rollout_id: str) -> bool:
    """Whether copies of requests may still be sent to the rollout's canary."""
    rows = Rollout.objects.filter(pk=rollout_id, organization_id=organization_id, status=Rollout.Status.CANARY)
    return rows.filter(deployment__deleted_at=None).exists()


def rollouts_active() -> QuerySet[Rollout]:
    return Rollout.objects.filter(status__in=ACTIVE).select_related(
        "deployment__base_model", "canary", "speculator", "previous"
    )
