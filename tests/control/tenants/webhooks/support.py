"""A clock that tests move forward, and a fake receiver that records its requests."""

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.tenants.events.services import event_record
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.tenants.webhooks.schedule import JITTER
from control.tenants.webhooks.sender import Sender, due
from control.tenants.webhooks.services import endpoint_create
from control.tenants.webhooks.transport import ReceiverResponse

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
MAX_DELAY_RATIO = 1 + JITTER  # the ratio of the longest possible delay to the delay without jitter


@dataclass
class Clock:
    now: dt.datetime = START

    def __call__(self) -> dt.datetime:
        return self.now


@dataclass(frozen=True)
class ReceivedRequest:
    at: dt.datetime
    body: bytes
    headers: Mapping[str, str]

    @property
    def event(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """A fake of the sender's `post`. `respond` returns the response.

    `calls` holds all requests, and `received` the requests with a response of 2xx.
    """

    clock: Clock
    respond: Callable[["Receiver"], ReceiverResponse] = lambda _: ReceiverResponse(status=200)
    calls: list[ReceivedRequest] = field(default_factory=list)
    received: list[ReceivedRequest] = field(default_factory=list)

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str], *, allow_private: bool) -> ReceiverResponse:
        call = ReceivedRequest(self.clock.now, body, headers)
        self.calls.append(call)
        response = self.respond(self)
        if response.status is not None and 200 <= response.status < 300:
            self.received.append(call)
        return response


def make_endpoint(organization: Organization, *events: str) -> tuple[WebhookEndpoint, str]:
    return endpoint_create(organization=organization, url="https://example.com/hook", events=events or ("*",))


def record_event(organization: Organization, object_id: str, kind: str = "batch.completed") -> Event:
    """Creates an event whose deliveries are due since the clock's start."""
    with transaction.atomic():
        event = event_record(organization_id=organization.pk, project_id=None, type=kind, object_id=object_id)
        WebhookDelivery.objects.filter(event=event).update(next_attempt_at=START)
    return event


def send_due_deliveries(sender: Sender) -> int:
    """Sends all deliveries that are due, including deliveries that become due when an earlier delivery has been sent.

    Returns: the number of sent deliveries.
    """
    sent = 0
    while ids := list(due(sender.clock()).values_list("pk", flat=True)):
        sent += sum(sender.deliver(delivery_id) for delivery_id in ids)
    return sent
