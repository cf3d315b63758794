"""Stops the endpoints of pipelines whose quote has reached its cap, and starts them again when the cap is raised.

The device time of an endpoint is charged once a minute, and the endpoints are compared with the caps about as often. An
endpoint can therefore exceed the cap by about two minutes of its replicas.
"""

from collections.abc import Callable
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Q, QuerySet

from control.core.api.errors import ApiError
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_start, deployment_stop
from control.tenants.row_security.each import each_as_tenant
from control.workflows.batches.caps import quote_cap_reached
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.state import Status

log = structlog.get_logger(__name__)


def endpoints_review() -> None:
    """Compares the endpoints of live pipelines with the caps of their quotes. Every worker may call it at any time."""
    pipelines = _under_caps().iterator(chunk_size=100)
    each_as_tenant(pipelines, _review, failure="could not compare an endpoint with its quote", name="pipeline_id")


def _under_caps() -> QuerySet[Pipeline]:
    """Live pipelines whose endpoint runs under a cap, or is stopped by one."""
    runs = Q(deployment__desired_state=Deployment.Desired.RUNNING, quote__cap_nanousd__isnull=False)
    live = Pipeline.objects.filter(runs | Q(paused__isnull=False), status=Status.LIVE, deployment__deleted_at=None)
    return live.select_related("deployment")


def _review(pipeline: Pipeline) -> None:
    assert pipeline.deployment is not None, "a live pipeline has a deployment"
    reached = quote_cap_reached(pipeline.quote_id)
    runs = pipeline.deployment.desired_state == Deployment.Desired.RUNNING
    if reached is not None and runs:
        _change(pipeline, deployment_stop, reached.as_reason())
    elif reached is None and pipeline.paused is not None:
        _start(pipeline, pipeline.paused)


def _start(pipeline: Pipeline, paused: dict[str, Any]) -> None:
    """Starts the endpoint, or records why the start is refused, for example because other endpoints occupy the
    organization's devices. The next review tries again."""
    try:
        _change(pipeline, deployment_start, None)
    except ApiError as error:
        reason = {"code": error.code or "invalid_request", "message": error.message, "cap_id": paused.get("cap_id")}
        Pipeline.objects.filter(pk=pipeline.pk, paused__isnull=False).update(paused=reason)


def _change(pipeline: Pipeline, change: Callable[..., object], reason: dict[str, Any] | None) -> None:
    with transaction.atomic():
        change(deployment=pipeline.deployment)
        Pipeline.objects.filter(pk=pipeline.pk).update(paused=reason)
