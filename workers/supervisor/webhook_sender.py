"""The thread of a worker that sends webhooks. All workers share the outbox; a worker claims each delivery it sends."""

import threading
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import structlog
from django.db import close_old_connections, connection

from control.tenants.row_security.scope import Across, across_tenants
from control.tenants.webhooks.sender import Sender, due
from workers.supervisor.guarded import run_guarded

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
MIN_ROUND_SECONDS = 0.05  # between two queries for due deliveries, even if many are due
MAX_IN_FLIGHT = 8
MAX_PER_ENDPOINT = 2  # a slow endpoint must not delay the deliveries of others


class WebhookSender(threading.Thread):
    """Once `stop` is set, the thread ends after the deliveries in flight."""

    def __init__(self, stop: threading.Event, sender: Sender | None = None) -> None:
        super().__init__(name="webhook sender", daemon=True)
        self._halt = stop  # not `_stop`, which is a method of Thread
        self._sender = sender or Sender()
        self._in_flight: dict[str, tuple[str, Future[None]]] = {}  # delivery id -> endpoint id, future of the delivery

    def run(self) -> None:
        with ThreadPoolExecutor(MAX_IN_FLIGHT, thread_name_prefix="webhook sender") as pool:
            while not self._halt.wait(MIN_ROUND_SECONDS):
                close_old_connections()
                with across_tenants(Across.HOUSEKEEPING):
                    run_guarded(lambda: self._round(pool), "due webhooks not read")
                self._wait()
        connection.close()

    def _wait(self) -> None:
        """Waits for the poll interval, or until a delivery ends, because the object's next event may then be sent."""
        if self._in_flight:
            wait([future for _, future in self._in_flight.values()], POLL_SECONDS, FIRST_COMPLETED)
        else:
            self._halt.wait(POLL_SECONDS)

    def _round(self, pool: ThreadPoolExecutor) -> None:
        self._in_flight = {key: entry for key, entry in self._in_flight.items() if not entry[1].done()}
        busy = Counter(endpoint_id for endpoint_id, _ in self._in_flight.values())
        for delivery_id, endpoint_id in due(self._sender.clock()).values_list("pk", "endpoint_id")[: 8 * MAX_IN_FLIGHT]:
            if len(self._in_flight) >= MAX_IN_FLIGHT:
                return
            if delivery_id not in self._in_flight and busy[endpoint_id] < MAX_PER_ENDPOINT:
                busy[endpoint_id] += 1
                self._in_flight[delivery_id] = endpoint_id, pool.submit(self._deliver, delivery_id)

    def _deliver(self, delivery_id: str) -> None:
        try:
            with across_tenants(Across.HOUSEKEEPING):
                self._sender.deliver(delivery_id)
        except Exception:  # the boundary of a thread: the claim expires, and another attempt follows
            log.exception("webhook not sent", delivery_id=delivery_id)
        finally:
            connection.close()
