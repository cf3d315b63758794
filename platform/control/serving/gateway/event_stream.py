"""The response that passes an engine's events on."""

from collections.abc import AsyncGenerator
from typing import Any

from django.http import StreamingHttpResponse

from control.core.api.errors import ApiError
from control.serving.gateway.wire import WIRES


class EventStream(StreamingHttpResponse):
    """Gives access to the events themselves, so that the handler can end their generator at once.

    Django wraps them in generators of its own, whose end would leave ours to the garbage collector.
    """

    def __init__(self, events: AsyncGenerator[bytes], **values: Any) -> None:
        super().__init__(events, **values)
        self.events = events


def error_event(error: ApiError, path: str) -> bytes:
    """Returns the last event of a stream of this path that cannot be completed."""
    return WIRES[path].error_event(error.body()["error"])
