"""`Client` and `AsyncClient`, which have a connection pool, an API key, and the API's resources as attributes."""

import asyncio
import copy
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Generic, Self

import httpx2

from slipstream.account import ApiKeys, Usages
from slipstream.adapters import Adapters
from slipstream.audits import Audits
from slipstream.batches import Batches
from slipstream.captures import Captures
from slipstream.catalog import BaseModels, BaseSpeculators, Models, Speculators
from slipstream.chat import Chat, Completions
from slipstream.datasets import Datasets, Quotes
from slipstream.deployments import Deployments
from slipstream.distillations import Distillations
from slipstream.drivers import AsyncDriver, AsyncRawDriver, Driver, RawDriver
from slipstream.errors import SlipstreamError
from slipstream.evaluations import Evaluations
from slipstream.events import Events
from slipstream.files import Files
from slipstream.fine_tuning import FineTuning
from slipstream.hardware import HardwareCatalog
from slipstream.http import D, Http
from slipstream.invoices import Invoices
from slipstream.jobs import Jobs
from slipstream.lineage import LineageGraphs
from slipstream.loops import Loops
from slipstream.messages import Messages
from slipstream.offboarding import Organization, OrganizationExports
from slipstream.organization import AuditEvents, Members, Projects
from slipstream.pipelines import Pipelines
from slipstream.responses import Responses
from slipstream.rollouts import Rollouts
from slipstream.spending import SpendCaps, SpendingThresholdsResource
from slipstream.storage import StorageLimit
from slipstream.uploads import Uploads
from slipstream.webhooks import WebhookEndpoints


class Resources(Generic[D]):
    """The resources that both clients offer."""

    def __init__(self, http: Http, driver: D) -> None:
        self._http = http
        self._driver = driver
        self.adapters = Adapters(http, driver)
        self.api_keys = ApiKeys(http, driver)
        self.audit_events = AuditEvents(http, driver)
        self.audits = Audits(http, driver)
        self.base_models = BaseModels(http, driver)
        self.base_speculators = BaseSpeculators(http, driver)
        self.batches = Batches(http, driver)
        self.captures = Captures(http, driver)
        self.chat = Chat(http, driver)
        self.completions = Completions(http, driver)
        self.datasets = Datasets(http, driver)
        self.deployments = Deployments(http, driver)
        self.distillations = Distillations(http, driver)
        self.evaluations = Evaluations(http, driver)
        self.events = Events(http, driver)
        self.files = Files(http, driver)
        self.fine_tuning = FineTuning(http, driver)
        self.hardware = HardwareCatalog(http, driver)
        self.invoices = Invoices(http, driver)
        self.jobs = Jobs(http, driver)
        self.lineage = LineageGraphs(http, driver)
        self.members = Members(http, driver)
        self.messages = Messages(http, driver)
        self.models = Models(http, driver)
        self.organization = Organization(http, driver)
        self.organization_exports = OrganizationExports(http, driver)
        self.pipelines = Pipelines(http, driver)
        self.projects = Projects(http, driver)
        self.quotes = Quotes(http, driver)
        self.responses = Responses(http, driver)
        self.rollouts = Rollouts(http, driver)
        self.loops = Loops(http, driver)
        self.speculators = Speculators(http, driver)
        self.spend_caps = SpendCaps(http, driver)
        self.spending_thresholds = SpendingThresholdsResource(http, driver)
        self.storage = StorageLimit(http, driver)
        self.uploads = Uploads(http, driver)
        self.usage = Usages(http, driver)
        self.webhook_endpoints = WebhookEndpoints(http, driver)

    def with_options(
        self,
        *,
        timeout_seconds: float | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Self:
        """Return a client with other options that shares this client's connections. None leaves an option unchanged.

        Args:
            headers: headers to send with every request, in addition to those of earlier `with_options` calls.
            idempotency_key: the key of the POST request that the returned client sends. A method that sends several
                POST requests, such as a large upload, gets the error `idempotency_key_reused`.
        """
        old = self._http
        http = Http(
            max_retries=old.max_retries if max_retries is None else max_retries,
            headers={**old.headers, **(headers or {})},
            timeout=old.timeout if timeout_seconds is None else _timeout(timeout_seconds),
            idempotency_key=idempotency_key or old.idempotency_key,
        )
        changed = copy.copy(self)
        Resources.__init__(changed, http, self._driver)
        return changed


class Client(Resources[Driver]):
    """The synchronous client. Close it, or use it in a `with` block. Threads may share a client."""

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
            base_url: ends in /v1; the default is SLIPSTREAM_BASE_URL.
            api_key: the default is SLIPSTREAM_API_KEY.
            transport: replaces the transport that sends requests, for tests or proxies.
            sleep: replaces the function that waits between retries and polls, for tests.

        Raises: SlipstreamError: the URL or the key is missing.
        """
        url, headers = _url_and_headers(base_url, api_key)
        self._client = httpx2.Client(
            base_url=url, headers=headers, timeout=_timeout(timeout_seconds), transport=transport
        )
        super().__init__(Http(max_retries), Driver(self._client, sleep))

    @property
    def with_raw_response(self) -> Resources[RawDriver]:
        """The client's resources, with methods that return a `RawResponse`: result, status, headers and body."""
        return Resources(self._http, RawDriver(self._driver))

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(Resources[AsyncDriver]):
    """The asynchronous client: the methods of `Client` as coroutines. Access to local files blocks the event loop."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_seconds: float = 600.0,
        max_retries: int = 2,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """See `Client`."""
        url, headers = _url_and_headers(base_url, api_key)
        self._client = httpx2.AsyncClient(
            base_url=url, headers=headers, timeout=_timeout(timeout_seconds), transport=transport
        )
        super().__init__(Http(max_retries), AsyncDriver(self._client, sleep))

    @property
    def with_raw_response(self) -> Resources[AsyncRawDriver]:
        """See `Client`."""
        return Resources(self._http, AsyncRawDriver(self._driver))

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _timeout(seconds: float) -> httpx2.Timeout:
    return httpx2.Timeout(seconds, connect=5.0)


def _url_and_headers(base_url: str | None, api_key: str | None) -> tuple[str, dict[str, str]]:
    base_url = base_url or os.environ.get("SLIPSTREAM_BASE_URL")
    api_key = api_key or os.environ.get("SLIPSTREAM_API_KEY")
    if not base_url or not api_key:
        missing = "base_url or SLIPSTREAM_BASE_URL" if not base_url else "api_key or SLIPSTREAM_API_KEY"
        raise SlipstreamError(f"{missing} must be set")
    headers = {"Authorization": f"Bearer {api_key}", "User-Agent": "slipstream-python"}
    return base_url.rstrip("/") + "/", headers
