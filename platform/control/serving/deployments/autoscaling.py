"""Adapts the number of a deployment's replicas to the number of requests that their engines report.

The supervisor that holds the deployment's first replica decides. It measures in its own memory for how long more or
fewer replicas have been needed. A new supervisor therefore starts this measurement from zero.
"""

import time
from dataclasses import dataclass

import structlog

from control.core.api.errors import ApiError
from control.serving.deployments.models import Deployment
from control.serving.deployments.scaling import replicas_wanted, scaling_of
from control.serving.deployments.services import deployment_scale
from control.serving.deployments.states import RUNNING_STATES

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Change:
    """A change of the number of replicas that has been needed since `since`, a time of the monotonic clock."""

    is_growth: bool
    since: float
    to: int  # when growing, the lowest number of replicas needed since then; when shrinking, the highest


class Autoscaler:
    def __init__(self) -> None:
        self._changes: dict[str, _Change] = {}  # by deployment

    def follow(self, deployment: Deployment) -> None:
        """Scales the deployment if a change is due. The caller should have prefetched the deployment's replicas."""
        options = scaling_of(deployment)
        current = deployment.num_replicas
        wanted = current if options.max_replicas is None else replicas_wanted(deployment)
        if wanted == current or deployment.state not in RUNNING_STATES:
            self._changes.pop(deployment.pk, None)
            return
        is_growth, now = wanted > current, time.monotonic()
        change = self._changes.get(deployment.pk)
        if change is None or change.is_growth != is_growth:
            change = self._changes[deployment.pk] = _Change(is_growth, now, wanted)
        change.to = min(change.to, wanted) if is_growth else max(change.to, wanted)
        if now - change.since >= (options.scale_up_seconds if is_growth else options.scale_down_seconds):
            del self._changes[deployment.pk]
            _scale(deployment, change.to)


def _scale(deployment: Deployment, to: int) -> None:
    """Sets the number of replicas to `to`. Adds fewer replicas if the organization's device limit requires it."""
    before = deployment.num_replicas
    for num_replicas in range(to, before, -1) if to > before else [to]:
        try:
            deployment_scale(deployment=deployment, num_replicas=num_replicas)
        except ApiError as error:
            log.warning("could not scale", deployment=deployment.pk, to=num_replicas, code=error.code)
        else:
            log.info("scaled", deployment=deployment.pk, replicas=before, to=num_replicas)
            return
