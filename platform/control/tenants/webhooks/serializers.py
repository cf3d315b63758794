"""Webhook endpoints and deliveries on the wire, and what requests may say about them."""

import datetime as dt
from typing import Any

from rest_framework import serializers

from control.core.api.fields import BodyInput, Choice
from control.core.api.times import unix
from control.tenants.events.types import patterns
from control.tenants.webhooks.addresses import MAX_URL_LENGTH
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint

DEFAULT_GRACE, MAX_GRACE = dt.timedelta(days=1), dt.timedelta(days=30)


def endpoint_body(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {
        "id": endpoint.pk,
        "object": "webhook_endpoint",
        "url": endpoint.url,
        "description": endpoint.description,
        "events": endpoint.events,
        "enabled": not endpoint.disabled,
        "disabled_reason": endpoint.disabled or None,
        "failing_since": unix(endpoint.failing_since),
        "created_at": unix(endpoint.created_at),
    }


def endpoint_with_secret_body(endpoint: WebhookEndpoint, secret: str) -> dict[str, Any]:
    """The only answers that ever hold a secret."""
    return {**endpoint_body(endpoint), "secret": secret}


def delivery_body(delivery: WebhookDelivery) -> dict[str, Any]:
    is_pending = delivery.status == WebhookDelivery.Status.PENDING
    return {
        "id": delivery.pk,
        "object": "webhook_delivery",
        "endpoint_id": delivery.endpoint_id,
        "event_id": delivery.event.id,
        "event_type": delivery.event.type,
        "object_id": delivery.object_id,
        "status": delivery.status,
        "attempt": delivery.attempt,
        "history": delivery.history,
        "next_attempt_at": unix(delivery.next_attempt_at) if is_pending else None,
        "created_at": unix(delivery.created_at),
        "finished_at": unix(delivery.finished_at),
    }


class _Events(serializers.ListField):
    """Patterns of event types."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            child=Choice(choices=patterns()), min_length=1, max_length=len(patterns()), **kwargs
        )


class EndpointInput(BodyInput):
    url = serializers.CharField(max_length=MAX_URL_LENGTH)
    events = _Events(default=["*"])
    description = serializers.CharField(max_length=200, allow_blank=True, default="")


class EndpointUpdateInput(BodyInput):
    url = serializers.CharField(max_length=MAX_URL_LENGTH, required=False)
    events = _Events(required=False)
    description = serializers.CharField(max_length=200, allow_blank=True, required=False)
    enabled = serializers.BooleanField(required=False)


class RotateSecretInput(BodyInput):
    grace_seconds = serializers.IntegerField(
        min_value=0, max_value=int(MAX_GRACE.total_seconds()), default=int(DEFAULT_GRACE.total_seconds())
    )
