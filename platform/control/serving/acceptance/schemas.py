"""The part of a deployment's response that shows its acceptance length."""

from typing import Annotated, Self

from pydantic import Field

from control.core.api.schemas import OneOf, ResponseModel, Unix
from control.serving.acceptance.models import AcceptanceWatch
from control.serving.deployments.models import Deployment


class DeploymentAcceptance(ResponseModel):
    """The acceptance length of the speculator that serves now, compared with that of its first bins of traffic."""

    state: Annotated[str, OneOf(AcceptanceWatch.State)] = Field(
        description="`learning`: there is no reference yet. `dropped`: it is lower than the reference, since "
        "`dropped_at`."
    )
    reference: float | None = Field(description="Tokens per pass of the model, learned after the speculator began.")
    current: float | None = Field(description="A mean of the latest minutes with traffic.")
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
