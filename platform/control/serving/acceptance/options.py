"""Options of a deployment's acceptance alarm."""

from typing import Annotated

from pydantic import Field

from control.core.api.schemas import RequestModel
from control.serving.acceptance.detector import MIN_LEARNED, NUM_LEARNED
from control.serving.deployments.models import Deployment

MAX_REFERENCE_MINUTES = 24 * 60


class AlarmOptions(RequestModel):
    """When a drop of the acceptance length is reported."""

    reference_minutes: Annotated[int, Field(ge=MIN_LEARNED, le=MAX_REFERENCE_MINUTES)] = Field(
        default=NUM_LEARNED,
        description="The reference is the mean acceptance length of so many minutes with traffic after the speculator "
        "began to serve. Fewer minutes report a drop earlier, and cause more false alarms. A change of this number "
        "starts another reference.",
    )


DEFAULT_ALARM = AlarmOptions()


def alarm_of(deployment: Deployment) -> AlarmOptions:
    stored = deployment.acceptance_alarm
    return DEFAULT_ALARM if stored is None else AlarmOptions.model_validate(stored)
