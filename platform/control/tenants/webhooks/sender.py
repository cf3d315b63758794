"""The second half of a webhook: takes deliveries that are due out of the outbox and sends them.

    due ──claim──> sent ──2xx──> succeeded
     ^               ├─ 410 ───> failed, and the endpoint is disabled
     └──── pause ────┴─ else ──> failed after the last attempt of the schedule

A claim is a compare-and-swap with an end, so a sender that dies leaves the delivery to the next one, which sends it
again under the same `webhook-id`: at least once. Of the deliveries of one object to one endpoint only the oldest is
due, whatever that costs the later ones: they arrive in order.
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
        """One attempt. Returns: False: somebody else has it, or it is not due any more."""
        now = self.clock()
        delivery = due(now).select_related("endpoint", "event").filter(pk=delivery_id).first()
        if delivery is None or not _claim(delivery, now):
            return False
        if delivery.attempt > len(PAUSES):  # each attempt's sender died
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
    """Longest due first."""
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
    """The row's own columns alone: PostgreSQL looks again at those, not at a subquery's, after waiting for a rival."""
    seen, until = WebhookDelivery.objects.filter(pk=delivery.pk, status=Status.PENDING), now + CLAIM
    if not seen.filter(attempt=delivery.attempt).update(attempt=F("attempt") + 1, claimed_until=until):
        return False
    delivery.attempt += 1
    return True


def _headers(delivery: WebhookDelivery, body: bytes, now: dt.datetime) -> dict[str, str]:
    identity = delivery.event.id  # the same for every attempt: what a receiver tells repetitions by
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
