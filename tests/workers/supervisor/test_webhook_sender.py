"""The thread that sends webhooks, against a real HTTP receiver in another thread."""

import datetime as dt
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.conf import settings
from django.utils import timezone
from standardwebhooks import Webhook

from control.core.settings.config import get_config
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.tenants.webhooks.sender import Sender
from control.tenants.webhooks.services import endpoint_create, endpoint_test
from tests.control.factories import make_organization
from tests.workers.supervisor.live import LiveStack
from workers.supervisor import webhook_sender
from workers.supervisor.webhook_sender import MAX_PER_ORGANIZATION, WebhookSender

NUM_EVENTS = 5
NUM_DEAD = 200


class Receiver(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls: list[tuple[bytes, dict[str, str]]] = []


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls.append((body, dict(self.headers)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name in the base class
        """Logs nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_sender_delivers_due_webhooks_with_a_signature_and_ends_after_the_stop_event(
    stack: LiveStack, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SLIPSTREAM", get_config().model_copy(update={"webhooks_allow_private": True}))
    monkeypatch.setattr(webhook_sender, "POLL_SECONDS", 0.02)
    url = f"http://127.0.0.1:{receiver.server_port}/hook"
    endpoint, secret = endpoint_create(organization=stack.organization, url=url, events=["*"])
    for _ in range(NUM_EVENTS):
        endpoint_test(endpoint=endpoint)
    stop = threading.Event()
    thread = WebhookSender(stop)

    thread.start()
    deadline = time.monotonic() + 30
    while WebhookDelivery.objects.filter(status="pending").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()
    thread.join(10)

    assert not thread.is_alive()
    assert set(WebhookDelivery.objects.values_list("status", "attempt")) == {("succeeded", 1)}
    assert len(receiver.calls) == NUM_EVENTS
    for body, headers in receiver.calls:
        Webhook(secret).verify(body, headers)


@pytest.mark.django_db
def test_two_hundred_dead_endpoints_of_one_organization_do_not_delay_a_delivery_of_another_organization() -> None:
    noisy, other = make_organization(), make_organization()
    dead = WebhookEndpoint.objects.bulk_create(
        [WebhookEndpoint(organization=noisy, url="https://dead.example", events=["*"]) for _ in range(NUM_DEAD)]
    )
    for endpoint in dead:
        endpoint_test(endpoint=endpoint)
    healthy, _ = endpoint_create(organization=other, url="https://healthy.example", events=["*"])
    endpoint_test(endpoint=healthy)
    WebhookDelivery.objects.filter(endpoint=healthy).update(next_attempt_at=timezone.now())
    WebhookDelivery.objects.exclude(endpoint=healthy).update(next_attempt_at=timezone.now() - dt.timedelta(hours=1))
    attempted, may_end = list[str](), threading.Event()

    class BlockedSender(Sender):
        def deliver(self, delivery_id: str) -> bool:
            attempted.append(delivery_id)
            return may_end.wait(30)

    sender = WebhookSender(threading.Event(), BlockedSender())
    with ThreadPoolExecutor(webhook_sender.MAX_IN_FLIGHT) as pool:
        sender._round(pool)
        may_end.set()

    endpoints = dict(WebhookDelivery.objects.values_list("pk", "endpoint_id"))
    served = [endpoints[delivery_id] for delivery_id in attempted]
    assert healthy.pk in served
    assert len(set(served)) == len(served) == 1 + MAX_PER_ORGANIZATION
