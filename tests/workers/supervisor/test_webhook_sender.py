"""The thread that sends webhooks, against a real HTTP receiver in another thread."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.conf import settings
from standardwebhooks import Webhook

from control.core.settings.config import get_config
from control.tenants.webhooks.models import WebhookDelivery
from control.tenants.webhooks.services import endpoint_create, endpoint_test
from tests.workers.supervisor.live import LiveStack
from workers.supervisor import webhook_sender
from workers.supervisor.webhook_sender import WebhookSender

NUM_EVENTS = 5


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
