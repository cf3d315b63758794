"""Checks an organization's limits on deployments and on the devices that its endpoints occupy.

Every replica occupies one device, so a running deployment with one replica and a canary occupies two. A process that
is being stopped occupies its device until it has ended. A request to start more endpoints than the limit allows is
refused here. The devices that jobs and endpoints hold together are limited when they are leased
(`queue.devices.quota`).
"""

from django.db.models import QuerySet, Sum

from control.core.api.errors import over_limit
from control.queue.devices.quota import MAX_NAMES
from control.serving.deployments.models import Deployment
from control.serving.deployments.states import RUNNING_STATES, State
from control.tenants.quotas.quota import organization_lock, quota_of


def deployment_quota_check(organization_id: str) -> None:
    """Call this in the transaction that creates a deployment. Raises: ApiError: 429.

    Effects: locks the organization until the transaction ends.
    """
    organization_lock(organization_id)
    limit = quota_of(organization_id).deployments
    existing = Deployment.objects.filter(organization_id=organization_id, deleted_at=None, canary_of=None)
    if existing.count() >= limit:
        message = f"Your organization has {limit:,} deployments, which is its limit. Delete one to create another."
        raise over_limit(message, "deployments_quota_exceeded")


def device_quota_check(organization_id: str, *, num_more: int = 1, starting: str | None = None) -> None:
    """Call this in the transaction that starts replicas of an endpoint. Raises: ApiError: 429.

    Args:
        num_more: number of the replicas.
        starting: id of an existing deployment that is started; its own processes are not counted.
    Effects: as `deployment_quota_check`.
    """
    organization_lock(organization_id)
    limit = quota_of(organization_id).devices
    occupied = devices_occupied(organization_id, without=starting)
    if occupied + num_more > limit:
        message = (
            f"Your organization's endpoints occupy {occupied:,} devices{_names(organization_id, starting)} and would "
            f"need {num_more:,} more, but its limit is {limit:,}. Stop one first."
        )
        raise over_limit(message, "devices_quota_exceeded")


def devices_occupied(organization_id: str, *, without: str | None = None) -> int:
    """Counts the replicas of running deployments and canaries, also of deleted ones that have not stopped yet.

    Args: without: id of a deployment that is not counted.
    """
    total: int | None = _running(organization_id, without).aggregate(total=Sum("num_replicas"))["total"]
    return total or 0


def _running(organization_id: str, without: str | None) -> QuerySet[Deployment]:
    running = Deployment.objects.filter(state__in=[*RUNNING_STATES, State.STOPPING], organization_id=organization_id)
    return running.exclude(pk=without)


def _names(organization_id: str, without: str | None) -> str:
    """Returns the names of the deployments that occupy the most devices, in parentheses."""
    largest = _running(organization_id, without).order_by("-num_replicas", "pk").select_related("canary_of")
    names = [f"{row.served_name}: {row.num_replicas}" for row in largest[: MAX_NAMES + 1]]
    if not names:
        return ""
    return f" ({', '.join(names[:MAX_NAMES])}{', …' if len(names) > MAX_NAMES else ''})"
