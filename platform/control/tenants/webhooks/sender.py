"""The sender of webhooks: claims deliveries that are due and sends them.

    due ──claim──> sent ──2xx──> succeeded
     ^               ├─ 410 ───> failed, and the endpoint is disabled
     └──── pause ────┴─ else ──> failed after the last attempt of the schedule

A claim is a compare-and-swap and expires: if a sender dies, another one sends the delivery again with the same
`webhook-id` (at-least-once delivery). If several deliveries about one object to one endpoint are pending, only the
oldest can be due. The newer ones wait, so that they arrive in order.
"""

import datetime as dt
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone
from standardwebhooks import Webhook

from control.core.observability import metrics
from control.core.settings.config import get_config
from control.tenants.events.schemas import EventObject
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.tenants.webhooks.results import Attempt, delivery_attempted, delivery_exhausted
from control.tenants.webhooks.schedule import PAUSES
from control.tenants.webhooks.selectors import secrets_in_force
from control.tenants.webhooks.transport import DEADLINE_SECONDS, ReceiverResponse, post

CLAIM_DURATION = dt.timedelta(seconds=4 * DEADLINE_SECONDS)
Status = WebhookDelivery.Status


class Post(Protocol):
    def __call__(
        self, url: str, body: bytes, headers: Mapping[str, str], *, allow_private: bool
    ) -> ReceiverResponse: ...


@dataclass(frozen=True, slots=True)
class Sender:
    send: Post = post
    clock: Callable[[], dt.datetime] = timezone.now

    def deliver(self, delivery_id: str) -> bool:
        """Makes one attempt. Returns: False if another sender has claimed the delivery, or if it is not due."""
        now = self.clock()
        delivery = due(now).select_related("endpoint", "event").filter(pk=delivery_id).first()
        if delivery is None or not _claim(delivery, now):
            return False
        if delivery.attempt > len(PAUSES):  # the sender of the last attempt died before it stored a result
            delivery_exhausted(delivery=delivery, now=now)
            return True
        body = json.dumps(EventObject.of(delivery.event).as_json(), separators=(",", ":")).encode()
        started = time.monotonic()
        response = self.send(
            delivery.endpoint.url,
            body,
            _headers(delivery, body, now),
            allow_private=get_config().webhooks_allow_private,
        )
        attempt = Attempt(at=now, response=response, milliseconds=round(1000 * (time.monotonic() - started)))
        metrics.webhook_attempts.labels(str(response.status or response.error)).inc()
        delivery_attempted(delivery=delivery, attempt=attempt, now=self.clock())
        return True


def due(now: dt.datetime) -> QuerySet[WebhookDelivery]:
    """Returns deliveries that are due, ordered by the time at which they became due."""
    earlier = WebhookDelivery.objects.filter(
        endpoint=OuterRef("endpoint"),
        object_id=OuterRef("object_id"),
        status=Status.PENDING,
        event__lt=OuterRef("event"),
    )
    return (
        WebhookDelivery.objects.filter(status=Status.PENDING, next_attempt_at__lte=now, endpoint__disabled="")
        .filter(Q(claimed_until=None) | Q(claimed_until__lte=now))
        .exclude(Exists(earlier))
        .order_by("next_attempt_at", "event")
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """An endpoint that has due deliveries."""

    organization_id: str
    endpoint_id: str


def endpoints_due(now: dt.datetime) -> list[Turn]:
    """Returns the endpoints with due deliveries. The query starts from the endpoints, because there can be very many
    deliveries."""
    pending = WebhookDelivery.objects.filter(
        endpoint=OuterRef("pk"), status=Status.PENDING, next_attempt_at__lte=now
    ).filter(Q(claimed_until=None) | Q(claimed_until__lte=now))
    endpoints = WebhookEndpoint.objects.filter(Exists(pending), disabled="")
    return [Turn(*ids) for ids in endpoints.values_list("organization_id", "pk")]


def _claim(delivery: WebhookDelivery, now: dt.datetime) -> bool:
    """Claims the delivery unless another sender has claimed it.

    The UPDATE filters by the row's own columns, not by `due`: after waiting for a row lock, PostgreSQL re-evaluates
    conditions on the row, but not subqueries.
    """
    pending, until = WebhookDelivery.objects.filter(pk=delivery.pk, status=Status.PENDING), now + CLAIM_DURATION
    if not pending.filter(attempt=delivery.attempt).update(attempt=F("attempt") + 1, claimed_until=until):
        return False
    delivery.attempt += 1
    return True


def _headers(delivery: WebhookDelivery, body: bytes, now: dt.datetime) -> dict[str, str]:
    identity = delivery.event.id  # the same in every attempt, so that receivers can detect repetitions
    signatures = [
        Webhook(secret).sign(identity, now, body.decode()) for secret in secrets_in_force(delivery.endpoint, now)
    ]
    return {
        "Content-Type": "application/json",
        "User-Agent": "Slipstream-Webhooks/1",
        "webhook-id": identity,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
