"""W1 of docs/reliability.md with real workers: no event is lost if a receiver is down or sending workers are killed.

Retry delays and the claims of dead senders last minutes. Instead of waiting, the tests change the stored times in the
database.
"""

import datetime as dt
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.conf import settings
from django.db import transaction
from django.db.models import F

from control.tenants.events.services import event_record
from control.tenants.webhooks.models import WebhookDelivery
from control.tenants.webhooks.services import endpoint_create
from tests.workers.supervisor.live import LiveStack, kill_9

HOUR = dt.timedelta(hours=1)
NUM_EVENTS, NUM_OBJECTS = 60, 6


@dataclass
class Receiver:
    """Receives webhooks. It responds slowly, so that senders are often killed in the middle of a call."""

    is_up: bool = True
    num_calls: int = 0
    received: list[str] = field(default_factory=list)  # ids of the webhooks whose response was 200
    lock: threading.Lock = field(default_factory=threading.Lock)

    def receive(self, webhook_id: str) -> int:
        """Returns the status of the response."""
        time.sleep(0.02)
        with self.lock:
            self.num_calls += 1
            if self.is_up:
                self.received.append(webhook_id)
        return 200 if self.is_up else 503


@pytest.fixture
def receiver(stack: LiveStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(receiver.receive(self.headers["webhook-id"]))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name in the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.environment["SLIPSTREAM_WEBHOOKS_ALLOW_PRIVATE"] = "1"
        config = settings.SLIPSTREAM.model_copy(update={"webhooks_allow_private": True})
        monkeypatch.setattr(settings, "SLIPSTREAM", config)
        url = f"http://127.0.0.1:{server.server_port}/"
        endpoint_create(organization=stack.organization, url=url, events=["batch.*"])
        yield receiver
        stack.close()
        server.shutdown()


def record_events(stack: LiveStack) -> dict[str, list[str]]:
    """Records events of several objects in turn. Returns the event ids of each object, in order."""
    ids = defaultdict(list)
    for number in range(NUM_EVENTS):
        object_id = f"batch_{number % NUM_OBJECTS}"
        with transaction.atomic():
            event = event_record(
                organization_id=stack.organization.pk, project_id=None, type="batch.in_progress", object_id=object_id
            )
        ids[object_id].append(event.id)
    return ids


def let_an_hour_pass() -> None:
    waiting = WebhookDelivery.objects.filter(status="pending")
    waiting.update(next_attempt_at=F("next_attempt_at") - HOUR, claimed_until=F("claimed_until") - HOUR)


def all_sent() -> bool:
    return not WebhookDelivery.objects.filter(status="pending").exists()


def check_all_arrived_in_order(receiver: Receiver, expected: dict[str, list[str]]) -> None:
    received_ids = list(dict.fromkeys(receiver.received))  # in order of the first delivery, without repetitions
    assert len(received_ids) == NUM_EVENTS, "an event was lost, or an unknown event arrived"
    for ids in expected.values():
        assert [event_id for event_id in received_ids if event_id in ids] == ids, "events of an object are out of order"


@pytest.mark.parametrize("num_kills", [2, pytest.param(10, marks=pytest.mark.soak)])
def test_every_event_is_delivered_although_senders_are_killed(
    stack: LiveStack, receiver: Receiver, num_kills: int
) -> None:
    expected = record_events(stack)
    worker = stack.start_worker()
    for kill in range(1, num_kills + 1):
        next_worker = stack.start_worker()
        count = kill * NUM_EVENTS // (num_kills + 1)
        stack.wait_until(lambda count=count: len(receiver.received) >= count or all_sent(), 60)  # type: ignore[misc]
        assert not all_sent(), "all events were sent before the worker was killed"
        kill_9(worker)
        let_an_hour_pass()
        worker = next_worker

    stack.wait_until(all_sent, 60)

    check_all_arrived_in_order(receiver, expected)


def test_a_receiver_that_was_down_gets_all_events_in_order(stack: LiveStack, receiver: Receiver) -> None:
    receiver.is_up = False
    expected = record_events(stack)
    stack.start_worker()
    stack.wait_until(lambda: receiver.num_calls >= NUM_OBJECTS, 60)
    assert receiver.received == []

    receiver.is_up = True
    let_an_hour_pass()

    stack.wait_until(all_sent, 60)
    check_all_arrived_in_order(receiver, expected)
    assert len(receiver.received) == NUM_EVENTS, "an event that was delivered was sent again"
