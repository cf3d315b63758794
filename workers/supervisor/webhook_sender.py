"""The thread of a worker that sends webhooks. All workers share the outbox; a worker claims each delivery it sends.

Endpoints with due deliveries take turns. The next endpoint is one whose organization has the fewest deliveries in
flight, and among several such endpoints the one that was served longest ago. Dead endpoints of one organization
therefore do not delay the deliveries of other organizations.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import structlog
from django.db import close_old_connections, connection

from control.tenants.row_security.scope import Across, across_tenants
from control.tenants.webhooks.sender import Sender, Turn, due, endpoints_due
from workers.supervisor.guarded import run_guarded

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
MIN_ROUND_SECONDS = 0.05  # between two queries for due deliveries, even if many are due
MAX_IN_FLIGHT = 16
MAX_PER_ORGANIZATION = 4  # a dead receiver occupies a thread until the deadline; other organizations need threads too
MAX_PER_ENDPOINT = 2  # a slow endpoint must not delay the deliveries of other endpoints


class WebhookSender(threading.Thread):
    """Once `stop` is set, the thread ends after the deliveries in flight."""

    def __init__(self, stop: threading.Event, sender: Sender | None = None) -> None:
        super().__init__(name="webhook sender", daemon=True)
        self._halt = stop  # not `_stop`, which is a method of Thread
        self._sender = sender or Sender()
        self._in_flight: dict[str, tuple[Turn, Future[None]]] = {}  # by delivery id
        self._served: dict[str, int] = {}  # endpoint id -> number of the turn in which the endpoint was served last
        self._num_turns = 0

    def run(self) -> None:
        with ThreadPoolExecutor(MAX_IN_FLIGHT, thread_name_prefix="webhook sender") as pool:
            while not self._halt.wait(MIN_ROUND_SECONDS):
                close_old_connections()
                with across_tenants(Across.HOUSEKEEPING):
                    run_guarded(lambda: self._round(pool), "due webhooks not read")
                self._wait()
        connection.close()

    def _wait(self) -> None:
        """Waits for the poll interval, or until a delivery ends, because the next event about the same object may then
        be sent."""
        if self._in_flight:
            wait([future for _, future in self._in_flight.values()], POLL_SECONDS, FIRST_COMPLETED)
        else:
            self._halt.wait(POLL_SECONDS)

    def _round(self, pool: ThreadPoolExecutor) -> None:
        self._in_flight = {key: entry for key, entry in self._in_flight.items() if not entry[1].done()}
        turns = endpoints_due(self._sender.clock())
        self._served = {turn.endpoint_id: self._served.get(turn.endpoint_id, 0) for turn in turns}
        while turns and len(self._in_flight) < MAX_IN_FLIGHT:
            turn = self._next(turns)
            if turn is None:
                return
            if not self._submit(pool, turn):
                turns.remove(turn)  # all due deliveries of the endpoint are in flight

    def _next(self, turns: Sequence[Turn]) -> Turn | None:
        """Returns the endpoint whose turn is next, or None if no endpoint may have a further delivery in flight."""
        busy = Counter[str]()
        for turn, _ in self._in_flight.values():
            busy.update((turn.organization_id, turn.endpoint_id))
        free = [
            turn
            for turn in turns
            if busy[turn.organization_id] < MAX_PER_ORGANIZATION and busy[turn.endpoint_id] < MAX_PER_ENDPOINT
        ]
        return min(free, key=lambda turn: (busy[turn.organization_id], self._served[turn.endpoint_id]), default=None)

    def _submit(self, pool: ThreadPoolExecutor, turn: Turn) -> bool:
        """Sends the endpoint's oldest due delivery that is not in flight. Returns: False if there is none."""
        deliveries = due(self._sender.clock()).filter(endpoint_id=turn.endpoint_id).exclude(pk__in=self._in_flight)
        delivery_id = deliveries.values_list("pk", flat=True).first()
        if delivery_id is None:
            return False
        self._num_turns += 1
        self._served[turn.endpoint_id] = self._num_turns
        self._in_flight[delivery_id] = turn, pool.submit(self._deliver, delivery_id)
        return True

    def _deliver(self, delivery_id: str) -> None:
        try:
            with across_tenants(Across.HOUSEKEEPING):
                self._sender.deliver(delivery_id)
        except Exception:  # the boundary of a thread: the claim expires, and another attempt follows
            log.exception("webhook not sent", delivery_id=delivery_id)
        finally:
            connection.close()
