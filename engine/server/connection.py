"""Closes idle client connections that uvicorn would keep.

uvicorn closes connections that are idle between two requests. But it waits forever if a client sends half a header, or
if a closing connection's client does not read the remaining bytes.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

KEEP_ALIVE_SECONDS = 75  # longer than a gateway's idle timeout, so that it never reuses a connection while it closes


class Connection(H11Protocol):
    """Checks every `KEEP_ALIVE_SECONDS` whether a request has begun since the last check."""

    _seen: RequestResponseCycle | None = None
    _watch: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's signature
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
