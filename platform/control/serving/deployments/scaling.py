"""Options of a deployment's scaling, and the rules by which the supervisors follow them.

The rules read rows of the database only. The numbers of open requests in these rows come from the engines, so they
include the requests of all gateways.
"""

import datetime as dt
import math
from typing import Annotated

from pydantic import Field

from control.core.api.schemas import RequestModel
from control.models.engines.schemas import EngineOptions
from control.serving.deployments.models import Deployment
from workers.planning import DEFAULT_CONCURRENCY

MIN_IDLE_SECONDS = 10
MAX_IDLE_SECONDS = 7 * 24 * 3600
MAX_REPLICAS = 64

NumReplicas = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]


class ScalingOptions(RequestModel):
    """When a deployment's engines sleep, and how the number of its replicas follows the traffic."""

    scale_to_zero_seconds: Annotated[int, Field(ge=MIN_IDLE_SECONDS, le=MAX_IDLE_SECONDS)] | None = Field(
        default=None,
        description="The endpoint's engines sleep when none of them has had a request for this time. The next request "
        "wakes one engine. Null means that they never sleep.",
    )
    max_replicas: NumReplicas | None = Field(
        default=None,
        description="The number of replicas follows the traffic up to this limit. Null means that it does not follow "
        "the traffic.",
    )
    min_replicas: NumReplicas = Field(
        default=1, description="The lowest number of replicas, if `max_replicas` is given."
    )
    target_concurrency: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="How many running and waiting requests each replica should have. Null means as many as an engine "
        "answers at once.",
    )
    scale_up_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=10, description="The time for which more replicas must be needed before they are started."
    )
    scale_down_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        default=300,
        description="The time for which fewer replicas must suffice before the surplus replicas are stopped.",
    )

    def within(self, num_replicas: int) -> int:
        """Returns the allowed number that is nearest to `num_replicas`."""
        if self.max_replicas is None:
            return num_replicas
        return min(self.max_replicas, max(self.min_replicas, num_replicas))

    def needed(self, num_open: int, *, at_once: int) -> int:
        """Returns how many replicas `num_open` requests need. Args: at_once: how many an engine answers at once."""
        return self.within(math.ceil(num_open / (self.target_concurrency or at_once)))


NO_SCALING = ScalingOptions()


def scaling_of(deployment: Deployment) -> ScalingOptions:
    return NO_SCALING if deployment.scaling is None else ScalingOptions.model_validate(deployment.scaling)


def replicas_wanted(deployment: Deployment) -> int:
    """Returns how many replicas are needed for the requests that run or wait now."""
    engine = EngineOptions.model_validate(deployment.engine or {})
    used = [replica for replica in deployment.replicas.all() if replica.number < deployment.num_replicas]
    num_open = sum(replica.num_open for replica in used)
    return scaling_of(deployment).needed(num_open, at_once=engine.max_concurrency or DEFAULT_CONCURRENCY)


def may_sleep(deployment: Deployment, *, now: dt.datetime) -> bool:
    """Whether no replica has been used for the time after which the deployment sleeps."""
    idle_seconds = scaling_of(deployment).scale_to_zero_seconds
    used = [replica.used_at for replica in deployment.replicas.all() if replica.used_at is not None]
    return idle_seconds is not None and bool(used) and now - max(used) >= dt.timedelta(seconds=idle_seconds)
