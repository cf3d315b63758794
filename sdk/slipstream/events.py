"""Events of the organization, as a list or as a stream."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2

from slipstream.drivers import Exchange, Item, Items, Page, Steps, iteration, listing, procedure
from slipstream.http import D, Lines, Resource, connection_error, path_of, pause, without_none
from slipstream.records import parsed
from slipstream.sse import next_data
from slipstream.types import Event


class Events(Resource[D]):
    @procedure
    def retrieve(self, event_id: str) -> Steps[Event]:
        return self.http.get(Event, path_of("events", event_id))

    @listing
    def list(self, *, types: Sequence[str] = (), object_id: str | None = None) -> Items[Page[Event]]:
        """Yield events, newest first. Args: types: names or patterns such as `batch.*`."""
        return self.http.pages(Event, "events", _filters(types, object_id))

    @iteration
    def stream(
        self, *, types: Sequence[str] = (), object_id: str | None = None, after: str | None = None
    ) -> Items[Event]:
        """Yield events as they happen, without end. With `after`, first yield the events after the one with this id.

        If the connection ends or breaks, the stream continues after the last event, so that each event is yielded once.
        """
        failures = 0
        while True:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
            options = {"headers": headers, "params": _filters(types, object_id)}
            exchange = Exchange(method="GET", path="events", options=options, stream=True)
            source = Lines((yield from self.http.send(exchange)))
            try:
                while (data := (yield from next_data(source))) is not None:
                    event = parsed(Event, json.loads(data))
                    after, failures = event.id, 0
                    yield Item(event)
            except httpx2.TransportError as error:
                failures += 1
                if failures > self.http.max_retries:
                    raise connection_error(exchange, error) from error
            yield pause(failures, {}, "GET events: the stream ended")


def _filters(types: Sequence[str], object_id: str | None) -> dict[str, Any]:
    return without_none({"types": ",".join(types) or None, "object_id": object_id})
