"""The client: one connection pool, one key, the API's resources as attributes."""

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx2

from slipstream.batches import Batches
from slipstream.catalog import Models, Speculators
from slipstream.deployments import Deployments
from slipstream.errors import SlipstreamError
from slipstream.files import Files
from slipstream.http import Http
from slipstream.pipelines import Pipelines


class Client:
    """Close it, or use it in a `with` block. One client serves many threads."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_seconds: float = 600.0,
        max_retries: int = 2,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            base_url: ends in /v1; else SLIPSTREAM_BASE_URL.
            api_key: else SLIPSTREAM_API_KEY.
            transport: what carries the requests; for tests and for proxies of your own.
            sleep: waits between retries and polls.

        Raises: SlipstreamError: no URL or no key.
        """
        base_url = base_url or os.environ.get("SLIPSTREAM_BASE_URL")
        api_key = api_key or os.environ.get("SLIPSTREAM_API_KEY")
        if not base_url or not api_key:
            missing = "base_url or SLIPSTREAM_BASE_URL" if not base_url else "api_key or SLIPSTREAM_API_KEY"
            raise SlipstreamError(f"the client needs {missing}")
        self._client = httpx2.Client(
            base_url=base_url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {api_key}", "User-Agent": "slipstream-python"},
            timeout=httpx2.Timeout(timeout_seconds, connect=5.0),
            transport=transport,
        )
        http = Http(self._client, max_retries=max_retries, sleep=sleep)
        self.files = Files(http)
        self.batches = Batches(http)
        self.models = Models(http)
        self.pipelines = Pipelines(http)
        self.speculators = Speculators(http)
        self.deployments = Deployments(http)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
