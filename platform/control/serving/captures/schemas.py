"""Requests and responses of captures."""

from typing import Annotated, Literal, Self

from django.db.models import Count, Min
from pydantic import Field

from control.core.api.schemas import IntRange, RequestModel, ResponseModel, Unix
from control.serving.captures.models import Capture
from control.serving.captures.selectors import requests_kept
from control.serving.captures.services import MAX_HOURS


class CaptureInput(RequestModel):
    hours: Annotated[int, IntRange(1, MAX_HOURS)]


class CaptureStopped(ResponseModel):
    code: str
    message: str


class CaptureObject(ResponseModel):
    """The capture of a deployment whose requests are kept."""

    object: Literal["capture"] = "capture"
    deployment_id: str
    hours: int = Field(description="The age at which a request is deleted.")
    num_requests: int
    oldest_at: Unix | None
    stopped: CaptureStopped | None = Field(
        description="Why no further requests are kept. Null: they are kept. Setting the capture again starts it again."
    )
    created_at: Unix

    @classmethod
    def of(cls, capture: Capture) -> Self:
        counts = requests_kept(capture).aggregate(num_requests=Count("pk"), oldest_at=Min("created_at"))
        return cls.from_row(capture, **counts)
