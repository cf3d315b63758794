"""The server's process: its socket, its signals, and its shutdown.

After SIGTERM or SIGINT, /health returns 503 and new requests are refused. Running requests continue for up to
`drain_seconds`. Requests that are still running then get an error, and the process exits with status 0. A second signal
ends the process immediately.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from engine.server.app import ServerApp
from engine.server.connection import KEEP_ALIVE_SECONDS, Connection

_FLUSH_SECONDS = 5  # time for clients to read their last bytes


class Process(uvicorn.Server):
    """The caller calls `run_until_stopped` once, from the main thread."""

    def __init__(
        self,
        app: ServerApp,
        *,
        drain_seconds: float,
        announce: Callable[[str | None], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Args:
        announce: called once connections are accepted, with None or the reason why no token can be generated.
        tls: None: the server answers over plain HTTP.
        """
        config = uvicorn.Config(
            app.asgi,
            http=Connection,
            log_level="warning",
            access_log=False,
            lifespan="on",
            server_header=False,
            ssl_context_factory=None if tls is None else lambda *_: tls,
            timeout_graceful_shutdown=_FLUSH_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)
        self._app = app
        self._drain_seconds = drain_seconds
        self._announce = announce
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    def run_until_stopped(self, listener: socket.socket) -> None:
        self.run(sockets=[listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._announce(await self._app.health.problem())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """May run between any two instructions of the main thread, so it only schedules the shutdown."""
        if self._loop is None or self._draining is not None:
            self.force_exit = self.should_exit = True
            return
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        else:
            self.force_exit = self.should_exit = True

    async def _drain(self) -> None:
        self._app.drain()
        deadline = time.monotonic() + self._drain_seconds
        while self._app.generations.num_active and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        self._app.async_engine.fail_all()
        self.should_exit = True
