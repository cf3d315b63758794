"""Stops everything that runs for an organization whose deletion was requested.

The chore is repeated until the organization is erased, so it also stops objects that are started in the console later.
Nothing is deleted: if the deletion is cancelled, deployments can be started and pipelines resumed.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from django.db.models import QuerySet

from control.core.api.errors import ApiError
from control.queue.jobs.models import Job
from control.queue.jobs.services import UNFINISHED, job_cancel
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_stop
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import CANCELLABLE, rollout_cancel
from control.tenants.accounts.models import Organization
from control.tenants.row_security.scope import as_tenant
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_cancel
from control.workflows.batches.state import TERMINAL
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.services import pipeline_cancel
from control.workflows.pipelines.state import ACTIVE

log = structlog.get_logger(__name__)

ROWS_A_ROUND = 100  # maximum number of objects of each kind that are stopped per organization


def organizations_drain() -> None:
    for organization in Organization.objects.filter(deletion_requested_at__isnull=False):
        with as_tenant(organization.pk, None):
            for stop in _stops(organization):
                try:
                    with suppress(ApiError):  # it has ended since it was read
                        stop()
                except Exception:  # an error of one object must not keep the others running
                    log.exception("could not stop an object", organization_id=organization.pk)


def _stops(organization: Organization) -> Iterator[Callable[[], object]]:
    """Yields the call that stops each running object. What starts other objects comes before those."""
    for rollout in _some(Rollout.objects.filter(organization=organization, status__in=CANCELLABLE)):
        yield partial(rollout_cancel, rollout=rollout)
    for pipeline in _some(Pipeline.objects.filter(organization=organization, status__in=ACTIVE)):
        yield partial(pipeline_cancel, pipeline=pipeline)
    unfinished = Job.objects.filter(organization=organization, status__in=UNFINISHED, cancel_requested_at=None)
    for batch in _some(Batch.objects.filter(job__in=unfinished).exclude(status__in=TERMINAL)):
        yield partial(batch_cancel, batch=batch)
    for job in _some(unfinished):
        yield partial(job_cancel, job=job)
    running = Deployment.objects.filter(organization=organization, desired_state=Deployment.Desired.RUNNING)
    for deployment in _some(running):
        yield partial(deployment_stop, deployment=deployment)


def _some(rows: QuerySet[Any]) -> list[Any]:
    return list(rows[:ROWS_A_ROUND])
