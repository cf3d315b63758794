"""Checks an organization's limits on deployments and on the devices that its endpoints occupy.

Every process occupies one device, so a running deployment with a canary occupies two. A process that is being stopped
occupies its device until it has ended. The devices of jobs are limited by the number of running jobs.
"""

from django.db.models import QuerySet

from control.core.api.errors import ApiError
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
        raise _refusal(message, "deployments_quota_exceeded")


def device_quota_check(organization_id: str, *, starting: str | None = None) -> None:
    """Call this in the transaction that starts a process of an endpoint. Raises: ApiError: 429.

    Args: starting: id of an existing deployment that is started; its own process is not counted.
    Effects: as `deployment_quota_check`.
    """
    organization_lock(organization_id)
    limit = quota_of(organization_id).devices
    if devices_occupied(organization_id).exclude(pk=starting).count() >= limit:
        message = f"Your organization's endpoints occupy {limit:,} devices, which is its limit. Stop one first."
        raise _refusal(message, "devices_quota_exceeded")


def devices_occupied(organization_id: str) -> QuerySet[Deployment]:
    """Deployments and canaries that have a process or should have one, also those deleted but not yet stopped."""
    return Deployment.objects.filter(state__in=[*RUNNING_STATES, State.STOPPING], organization_id=organization_id)


def _refusal(message: str, code: str) -> ApiError:
    return ApiError(429, message, code, type="insufficient_quota", headers={"x-should-retry": "false"})
