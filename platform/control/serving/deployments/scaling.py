"""Options of a deployment's scaling, and the rules by which the supervisors follow them.

The rules read rows only. What the rows say about the use of a replica is the engine's own count, which contains the
requests of all gateways.
"""

import datetime as dt
from typing import Annotated

from pydantic import Field

from control.core.api.schemas import RequestModel
from control.serving.deployments.models import Deployment

MIN_IDLE_SECONDS = 10
MAX_IDLE_SECONDS = 7 * 24 * 3600


class ScalingOptions(RequestModel):
    """How a deployment follows its traffic."""

    scale_to_zero_seconds: Annotated[int, Field(ge=MIN_IDLE_SECONDS, le=MAX_IDLE_SECONDS)] | None = Field(
        default=None,
        description="The endpoint's engines sleep when none of them has had a request for so long. The next request "
        "wakes one. Null: they never sleep.",
    )


def scaling_of(deployment: Deployment) -> ScalingOptions:
    return ScalingOptions.model_validate(deployment.scaling or {})


def may_sleep(deployment: Deployment, *, now: dt.datetime) -> bool:
    """Whether no replica has been used for the time after which the deployment sleeps."""
    idle_seconds = scaling_of(deployment).scale_to_zero_seconds
    used = [replica.used_at for replica in deployment.replicas.all() if replica.used_at is not None]
    return idle_seconds is not None and bool(used) and now - max(used) >= dt.timedelta(seconds=idle_seconds)
