"""The part of a deployment's response that shows its acceptance length."""

from typing import Annotated, Self

from pydantic import Field

from control.core.api.schemas import OneOf, ResponseModel, Unix
from control.serving.acceptance.models import AcceptanceWatch
from control.serving.deployments.models import Deployment


class DeploymentAcceptance(ResponseModel):
    """Compares the acceptance length of the present speculator with a reference from its first traffic."""

    state: Annotated[str, OneOf(AcceptanceWatch.State)] = Field(
        description="`learning`: there is no reference yet. `watching`: the acceptance length has not dropped. "
        "`dropped`: it is lower than the reference; `dropped_at` says when this was detected."
    )
    reference: float | None = Field(
        description="The acceptance length that was learned after the speculator began to serve, in tokens per forward "
        "pass."
    )
    current: float | None = Field(description="A mean of the acceptance length in the latest minutes with traffic.")
    dropped_at: Unix | None = Field(description="When the latest drop was detected.")
    drop_began_at: Unix | None = Field(description="An estimate of when the latest drop began.")

    @classmethod
    def of(cls, deployment: Deployment) -> Self | None:
        """Returns None if the speculator that the deployment serves has not been watched yet."""
        watch: AcceptanceWatch | None = getattr(deployment, "acceptance_watch", None)
        if watch is None or watch.speculator_id != deployment.speculator_id:
            return None
        is_learning = watch.state == AcceptanceWatch.State.LEARNING
        return cls.from_row(watch, reference=None if is_learning else watch.mean)
