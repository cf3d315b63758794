"""The sender of webhooks: claims deliveries that are due and sends them.

    due ──claim──> sent ──2xx──> succeeded
     ^               ├─ 410 ───> failed, and the endpoint is disabled
     └──── pause ────┴─ else ──> failed after the last attempt of the schedule

A claim is a compare-and-swap and expires, so if a sender dies, the next one sends the delivery again with the same
`webhook-id`: delivery is at least once. Of the pending deliveries of one object to one endpoint only the oldest can be
due, so they arrive in order, even if the later ones have to wait for it.
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
from control.tenants.webhooks.models import WebhookDelivery
from control.tenants.webhooks.results import Attempt, delivery_attempted, delivery_exhausted
from control.tenants.webhooks.schedule import PAUSES
from control.tenants.webhooks.selectors import secrets_in_force
from control.tenants.webhooks.transport import DEADLINE_SECONDS, Answer, post

CLAIM = dt.timedelta(seconds=4 * DEADLINE_SECONDS)
Status = WebhookDelivery.Status


class Post(Protocol):
    def __call__(self, url: str, body: bytes, headers: Mapping[str, str], *, allow_private: bool) -> Answer: ...


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
        if delivery.attempt > len(PAUSES):  # the sender of each attempt died
            delivery_exhausted(delivery=delivery, now=now)
            return True
        body = json.dumps(EventObject.of(delivery.event).as_json(), separators=(",", ":")).encode()
        started = time.monotonic()
        answer = self.send(
            delivery.endpoint.url,
            body,
            _headers(delivery, body, now),
            allow_private=get_config().webhooks_allow_private,
        )
        attempt = Attempt(at=now, answer=answer, milliseconds=round(1000 * (time.monotonic() - started)))
        metrics.webhook_attempts.labels(str(answer.status or answer.error)).inc()
        delivery_attempted(delivery=delivery, attempt=attempt, now=self.clock())
        return True


def due(now: dt.datetime) -> QuerySet[WebhookDelivery]:
    """Returns deliveries that are due, the longest due first."""
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


def _claim(delivery: WebhookDelivery, now: dt.datetime) -> bool:
    """Filters by the row's own columns: after waiting for a lock PostgreSQL re-evaluates these, but no subquery."""
    seen, until = WebhookDelivery.objects.filter(pk=delivery.pk, status=Status.PENDING), now + CLAIM
    if not seen.filter(attempt=delivery.attempt).update(attempt=F("attempt") + 1, claimed_until=until):
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
