"""One client's connection, which must not be held for nothing.

uvicorn closes a connection that is idle between two requests. It waits without end for one that sends half a header,
and for one that is closed while its client does not take what is left.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

KEEP_ALIVE_SECONDS = 75  # longer than a gateway keeps idle connections, so that none is closed as it is reused


class Connection(H11Protocol):
    """Looks every `KEEP_ALIVE_SECONDS` whether a request has begun since."""

    _seen: RequestResponseCycle | None = None
    _watch: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._watch = self.loop.call_later(KEEP_ALIVE_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.transport.is_closing():
            self.transport.abort()
            return
        waits = self.cycle is None or self.cycle.response_complete
        if waits and self.cycle is self._seen:
            self.transport.close()
        self._seen = self.cycle
        self._watch = self.loop.call_later(KEEP_ALIVE_SECONDS, self._look)
