"""Queries for captured traffic."""

from collections.abc import Collection
from datetime import datetime

from django.db.models import QuerySet
from django.db.models.expressions import Combinable

from control.core.api.errors import ApiError
from control.core.database_clock import from_now
from control.serving.captures.models import Capture, CapturedRequest
from control.serving.deployments.models import Deployment


def capture_of(deployment: Deployment) -> Capture:
    """Returns the deployment's capture. Raises: ApiError: 404, the requests of this deployment are not kept."""
    capture = Capture.objects.filter(deployment=deployment).select_related("deployment__base_model").first()
    if capture is None:
        message = f"Requests to deployment {deployment.pk} are not kept."
        raise ApiError(404, message, "capture_not_found", "deployment_id")
    return capture


def captures_since(deployment_ids: Collection[str]) -> dict[str, datetime]:
    """Returns the time of the opt-in by deployment, for those of the deployments whose requests are kept."""
    captures = Capture.objects.filter(deployment_id__in=deployment_ids, stopped__isnull=True)
    return dict(captures.values_list("deployment_id", "created_at"))


def requests_kept(capture: Capture) -> QuerySet[CapturedRequest]:
    """Returns the captured requests, except requests that are too old (but not deleted yet) or not encrypted yet."""
    encrypted = CapturedRequest.objects.filter(body__isnull=True)
    return encrypted.filter(deployment_id=capture.deployment_id, created_at__gt=oldest_kept(capture))


def oldest_kept(capture: Capture) -> Combinable:
    """Returns a database expression for a time. Requests that are older are too old to be kept."""
    return from_now(-3600.0 * capture.hours)
