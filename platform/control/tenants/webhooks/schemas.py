"""Requests and responses of webhook endpoints and their deliveries."""

import datetime as dt
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.schemas import IntRange, OneOf, RequestModel, ResponseModel, Text, Unix
from control.tenants.events.types import patterns
from control.tenants.webhooks.addresses import MAX_URL_LENGTH
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint

DEFAULT_GRACE, MAX_GRACE = dt.timedelta(days=1), dt.timedelta(days=30)

_Url = Annotated[str, Text(MAX_URL_LENGTH)]
_Events = Annotated[list[Annotated[str, OneOf(patterns())]], Field(min_length=1, max_length=len(patterns()))]
_Description = Annotated[str, Field(max_length=200)]


class EndpointInput(RequestModel):
    url: _Url
    events: _Events = ["*"]
    description: _Description = ""


class EndpointUpdateInput(RequestModel):
    """Only members that were sent are changed. Default factories, unlike defaults, stay out of the OpenAPI document."""

    url: _Url = Field(default_factory=str)
    events: _Events = Field(default_factory=list)
    description: _Description = Field(default_factory=str)
    enabled: bool = Field(default_factory=bool)


class RotateSecretInput(RequestModel):
    grace_seconds: Annotated[int, IntRange(0, int(MAX_GRACE.total_seconds()))] = int(DEFAULT_GRACE.total_seconds())


class WebhookEndpointObject(ResponseModel):
    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    url: str
    description: str
    events: SkipValidation[list[str]]
    enabled: bool
    disabled_reason: Annotated[str, OneOf(WebhookEndpoint.Disabled)] | None
    failing_since: Unix | None
    created_at: Unix

    @classmethod
    def of(cls, endpoint: WebhookEndpoint, **members: Any) -> Self:
        reason = endpoint.disabled or None
        return cls.from_row(endpoint, enabled=reason is None, disabled_reason=reason, **members)


class WebhookEndpointWithSecret(WebhookEndpointObject):
    secret: str | None = Field(
        description="The secret, which is shown only once. Null in a response that is replayed for an Idempotency-Key."
    )


class DeliveryAttempt(ResponseModel):
    at: Unix
    status_code: int | None
    error: str | None
    milliseconds: int


class WebhookDeliveryObject(ResponseModel):
    id: str
    object: Literal["webhook_delivery"] = "webhook_delivery"
    endpoint_id: str
    event_id: str
    event_type: str
    object_id: str
    status: Annotated[str, OneOf(WebhookDelivery.Status)]
    attempt: int
    history: SkipValidation[list[DeliveryAttempt]]
    next_attempt_at: Unix | None
    created_at: Unix
    finished_at: Unix | None

    @classmethod
    def of(cls, delivery: WebhookDelivery) -> Self:
        is_pending = delivery.status == WebhookDelivery.Status.PENDING
        return cls.from_row(
            delivery,
            event_id=delivery.event.id,
            event_type=delivery.event.type,
            next_attempt_at=delivery.next_attempt_at if is_pending else None,
        )
