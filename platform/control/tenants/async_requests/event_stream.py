"""A response that is a stream of events, such as those of an engine."""

from collections.abc import AsyncGenerator
from typing import Any

from django.http import StreamingHttpResponse

from control.core.api.operation import EVENTS


class EventStream(StreamingHttpResponse):
    """A stream of events. The handler uses the generator `events` itself, so that it can end the generator at once.

    Django wraps this generator in other generators. If the handler ended only a wrapper, `events` would not end before
    the garbage collector finds it.
    """

    def __init__(self, events: AsyncGenerator[bytes], *, at_shutdown: bytes = b"", **values: Any) -> None:
        """Args: at_shutdown: sent if the server ends the stream because it shuts down."""
        super().__init__(events, content_type=EVENTS, **values)
        self.events, self.at_shutdown = events, at_shutdown
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"  # nginx passes events on at once
