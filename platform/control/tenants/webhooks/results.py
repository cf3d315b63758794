"""Services that write the result of an attempt into the delivery and its endpoint."""

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from control.tenants.events.services import event_record
from control.tenants.webhooks.event_types import ENDPOINT_DISABLED
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.tenants.webhooks.schedule import next_attempt
from control.tenants.webhooks.transport import ReceiverResponse

MAX_HISTORY = 20
FAILING_BEFORE_DISABLED = dt.timedelta(days=3)
GONE = 410
Status = WebhookDelivery.Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    at: dt.datetime
    response: ReceiverResponse
    milliseconds: int

    def as_json(self) -> dict[str, Any]:
        return {
            "at": int(self.at.timestamp()),
            "status_code": self.response.status,
            "error": self.response.error,
            "milliseconds": self.milliseconds,
        }


@transaction.atomic
def delivery_attempted(*, delivery: WebhookDelivery, attempt: Attempt, now: dt.datetime) -> None:
    """Writes the result, unless the delivery was replayed or claimed by another sender meanwhile."""
    response = attempt.response
    history = [*delivery.history, attempt.as_json()][-MAX_HISTORY:]
    endpoints = WebhookEndpoint.objects.filter(pk=delivery.endpoint_id)
    if response.status is not None and 200 <= response.status < 300:  # 3xx is a failure: redirects are not followed
        if _end_claim(delivery, status=Status.SUCCEEDED, finished_at=now, history=history):
            endpoints.exclude(failing_since=None).update(failing_since=None)
        return
    endpoints.filter(failing_since=None).update(failing_since=now)
    if response.status == GONE:
        if _end_claim(delivery, status=Status.FAILED, finished_at=now, history=history):
            _disable(delivery.endpoint_id, WebhookEndpoint.Disabled.GONE)
        return
    next_at = next_attempt(attempts=delivery.attempt, now=now, retry_after=response.retry_after)
    if next_at is not None:
        _end_claim(delivery, next_attempt_at=next_at, history=history)
    elif _end_claim(delivery, history=history):
        delivery_exhausted(delivery=delivery, now=now)


@transaction.atomic
def delivery_exhausted(*, delivery: WebhookDelivery, now: dt.datetime) -> None:
    """Marks the delivery as failed. Disables the endpoint if no delivery has succeeded for three days."""
    if not _end_claim(delivery, status=Status.FAILED, finished_at=now):
        return
    failing = WebhookEndpoint.objects.filter(pk=delivery.endpoint_id, failing_since__lte=now - FAILING_BEFORE_DISABLED)
    if failing.exists():
        _disable(delivery.endpoint_id, WebhookEndpoint.Disabled.FAILING)


def _end_claim(delivery: WebhookDelivery, **values: Any) -> bool:
    claimed = WebhookDelivery.objects.filter(pk=delivery.pk, attempt=delivery.attempt, status=Status.PENDING)
    return bool(claimed.update(claimed_until=None, **values))


def _disable(endpoint_id: str, reason: WebhookEndpoint.Disabled) -> None:
    """Disables the endpoint. Effects: an event for readers of the feed and for the customer's other endpoints."""
    if WebhookEndpoint.objects.filter(pk=endpoint_id, disabled="").update(disabled=reason):
        owner = WebhookEndpoint.objects.values("organization_id", "project_id").get(pk=endpoint_id)
        event_record(**owner, type=ENDPOINT_DISABLED, object_id=endpoint_id)
