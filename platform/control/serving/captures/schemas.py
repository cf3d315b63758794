"""Requests and responses of captures."""

from typing import Annotated, Literal, Self

from django.db.models import Count, Min
from pydantic import Field, SkipValidation

from control.core.api.schemas import IntRange, RequestModel, ResponseModel, Unix
from control.serving.captures.models import Capture
from control.serving.captures.redaction import KINDS, MAX_PATTERN_LENGTH, MAX_PATTERNS, REPLACEMENT
from control.serving.captures.selectors import requests_kept
from control.serving.captures.services import MAX_HOURS

RedactKind = Literal["email", "ip_address", "credit_card"]


class CaptureInput(RequestModel):
    hours: Annotated[int, IntRange(1, MAX_HOURS)]
    sample_percent: float = Field(
        default=100.0,
        gt=0,
        le=100,
        description="The percentage of requests to keep. The requests are drawn at random.",
    )
    redact: list[RedactKind] = Field(
        default=[],
        max_length=len(KINDS),
        description=f"Kinds of data that are replaced by {REPLACEMENT!r} before a request is stored.",
    )
    redact_patterns: list[Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_LENGTH)]] = Field(
        default=[],
        max_length=MAX_PATTERNS,
        description=f"Regular expressions, in the syntax of RE2, whose matches are replaced by {REPLACEMENT!r}.",
    )


class CaptureStopped(ResponseModel):
    code: str
    message: str


class CaptureObject(ResponseModel):
    """A deployment's capture: the settings by which its requests are stored, and how many are stored now."""

    object: Literal["capture"] = "capture"
    deployment_id: str
    hours: int = Field(description="The age in hours at which a stored request is deleted.")
    sample_percent: float
    redact: SkipValidation[list[str]]
    redact_patterns: SkipValidation[list[str]]
    num_requests: int
    oldest_at: Unix | None
    stopped: CaptureStopped | None = Field(
        description=(
            "Why the capture has stopped storing requests. Null if it has not stopped. Setting the capture again "
            "restarts it."
        )
    )
    created_at: Unix

    @classmethod
    def of(cls, capture: Capture) -> Self:
        counts = requests_kept(capture).aggregate(num_requests=Count("pk"), oldest_at=Min("created_at"))
        return cls.from_row(capture, **counts)
