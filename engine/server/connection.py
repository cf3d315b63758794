"""Closes idle client connections that uvicorn would keep open.

uvicorn closes connections that are idle between two requests. But it waits for ever if a client sends only part of a
header, or does not read the remaining bytes of a connection that is being closed.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

KEEP_ALIVE_SECONDS = 75  # longer than a gateway's idle timeout, so that the gateway closes an idle connection first


class Connection(H11Protocol):
    """Checks every `KEEP_ALIVE_SECONDS` whether a request has begun since the last check."""

    _last_cycle: RequestResponseCycle | None = None  # the current request at the last check
    _timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's signature
        super().connection_made(transport)
        self._timer = self.loop.call_later(KEEP_ALIVE_SECONDS, self._check_activity)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _check_activity(self) -> None:
        if self.transport.is_closing():
            self.transport.abort()
            return
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.cycle is self._last_cycle:
            self.transport.close()
        self._last_cycle = self.cycle
        self._timer = self.loop.call_later(KEEP_ALIVE_SECONDS, self._check_activity)
