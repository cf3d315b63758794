"""Connections of a gateway to engines: one pool for each engine with TLS, and one for all engines without.

A pool keeps idle connections by host and port. If all engines shared one pool, an engine could give up its port and
keep its open connections. It would then get requests for the engine that listens on this port now.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from time import monotonic

import httpx2

from control.serving.deployments.engine_tls import EngineAddress, trusting

UNUSED_SECONDS = 60.0


@dataclass(slots=True)
class _Pool:
    transport: httpx2.AsyncHTTPTransport
    num_open: int = 0  # requests whose answers have not ended
    used_at: float = 0.0

    def end_request(self) -> None:
        self.num_open, self.used_at = self.num_open - 1, monotonic()


class EnginePools(httpx2.AsyncBaseTransport):
    """Sends each request through its engine's pool. When a pool is opened, pools unused for a minute are closed."""

    def __init__(self, limits: httpx2.Limits) -> None:
        self._limits = limits
        self._pools: dict[str, _Pool] = {}  # by certificate

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        certificate = EngineAddress.certificate_of(request.extensions)
        pool = self._pools.get(certificate)
        if pool is None:
            transport = httpx2.AsyncHTTPTransport(verify=trusting(certificate), limits=self._limits, trust_env=False)
            pool = self._pools[certificate] = _Pool(transport)
        pool.num_open += 1  # from here on, the pool is in use
        try:
            if pool.used_at == 0.0:
                await self._close_unused()
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            pool.end_request()
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Watched(response.stream, pool.end_request)
        return response

    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.transport.aclose()

    async def _close_unused(self) -> None:
        earliest = monotonic() - UNUSED_SECONDS
        unused = [name for name, pool in self._pools.items() if pool.num_open == 0 and pool.used_at < earliest]
        for pool in [self._pools.pop(name) for name in unused]:
            await pool.transport.aclose()


class _Watched(httpx2.AsyncByteStream):
    """Calls `on_end` once, when the stream is closed."""

    def __init__(self, stream: httpx2.AsyncByteStream, on_end: Callable[[], None]) -> None:
        self._stream, self._on_end = stream, on_end
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if self._is_open:
                self._is_open = False
                self._on_end()
