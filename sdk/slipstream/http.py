"""Requests with retries, as generators of effects. This module knows HTTP and JSON, but not the API's objects.

Connection errors and the statuses 408, 409, 429 and 5xx are retried, twice by default. The `retry-after` header of the
response determines the pause. Without it, the pause starts at 0.5 s and doubles up to 8 s, with jitter. The header
`x-should-retry` overrides which statuses are retried. Every attempt of a POST has the same `Idempotency-Key`, so that
the service executes the request once.
"""

import logging
import random
import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO, Generic, TypeVar
from urllib.parse import quote

import httpx2

from slipstream.drivers import (
    AsyncDriver,
    AsyncRawDriver,
    Driver,
    Exchange,
    ExchangeResult,
    Item,
    Items,
    Page,
    Pause,
    RawDriver,
    Read,
    Steps,
)
from slipstream.errors import APIConnectionError, APIResponseError, APITimeoutError, status_error
from slipstream.records import parsed

log = logging.getLogger("slipstream")

MAX_RETRY_AFTER_SECONDS = 120.0
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 8.0
_RETRIED_STATUSES = (408, 409, 429)

_Object = TypeVar("_Object")
# The driver of the client that a resource belongs to.
D = TypeVar("D", bound=Driver | AsyncDriver | RawDriver | AsyncRawDriver)


@dataclass(frozen=True, slots=True)
class Http:
    max_retries: int = 2
    headers: Mapping[str, str] = field(default_factory=dict)  # sent with every request
    timeout: httpx2.Timeout | None = None  # None: the timeout of the connection pool
    idempotency_key: str | None = None  # sent with every POST; None: each POST gets a new key

    def get(self, kind: type[_Object], path: str, params: Mapping[str, Any] | None = None) -> Steps[_Object]:
        return parsed(kind, (yield from self.request("GET", path, params=without_none(params or {}))))

    def post(self, kind: type[_Object], path: str, body: Mapping[str, Any] | None = None) -> Steps[_Object]:
        """Members of `body` whose value is None are left out."""
        return parsed(kind, (yield from self.request("POST", path, json=without_none(body or {}))))

    def patch(self, kind: type[_Object], path: str, body: Mapping[str, Any]) -> Steps[_Object]:
        return parsed(kind, (yield from self.request("PATCH", path, json=dict(body))))

    def put(self, kind: type[_Object], path: str, body: Mapping[str, Any]) -> Steps[_Object]:
        return parsed(kind, (yield from self.request("PUT", path, json=dict(body))))

    def delete(self, path: str) -> Steps[None]:
        yield from self.request("DELETE", path)

    def upload(
        self,
        kind: type[_Object],
        path: str,
        fields: Mapping[str, str],
        upload: Mapping[str, tuple[str, BinaryIO | bytes]],
    ) -> Steps[_Object]:
        """Sends a multipart form with `fields` and files.

        Args: upload: (filename, content) by form field. Streams must be seekable, because a retry rereads them.
        """
        return parsed(kind, (yield from self.request("POST", path, data=dict(fields), files=dict(upload))))

    def pages(self, kind: type[_Object], path: str, params: Mapping[str, Any] | None = None) -> Items[Page[_Object]]:
        """Yields the pages of a list."""
        query: dict[str, Any] = {"limit": 100, **without_none(params or {})}
        while True:
            page = yield from self.request("GET", path, params=query)
            data = page.get("data")
            if not isinstance(data, list):
                raise APIResponseError(f"GET {path}: a list must have `data`, got {sorted(page)}")
            has_more = bool(data) and bool(page.get("has_more"))
            last_id = page.get("last_id") or (data[-1].get("id") if data else None)
            yield Item(Page(data=[parsed(kind, values) for values in data], has_more=has_more, last_id=last_id))
            if not has_more:
                return
            query["after"] = last_id

    def request(self, method: str, path: str, **options: Any) -> Steps[dict[str, Any]]:
        result = yield from self.send(Exchange(method=method, path=path, options=options))
        body = _body(result.response)
        if not isinstance(body, dict):
            raise APIResponseError(f"{method} {path}: expected a JSON object, got {result.response.text[:80]!r}")
        return body

    def send(self, exchange: Exchange) -> Steps[ExchangeResult]:
        """Sends a request, with retries. Raises: APIConnectionError, APIStatusError: the last attempt failed."""
        exchange = replace(exchange, options=self._options(exchange))
        for attempt in range(self.max_retries + 1):
            is_last = attempt == self.max_retries
            try:
                result: ExchangeResult = yield exchange
            except httpx2.TransportError as error:
                if is_last:
                    raise connection_error(exchange, error) from error
                yield pause(attempt, {}, f"{exchange.method} {exchange.path}: {error!r}")
                continue
            response = result.response
            if response.status_code < 400:
                return result
            if is_last or not _should_retry(response):
                raise status_error(response.status_code, _body(response), response.headers.get("x-request-id"))
            yield pause(attempt, response.headers, f"{exchange.method} {exchange.path}: {response.status_code}")
        raise AssertionError("the last attempt returns or raises")

    def _options(self, exchange: Exchange) -> dict[str, Any]:
        headers = {**self.headers, **exchange.options.get("headers", {})}
        if exchange.method == "POST":
            headers = {"Idempotency-Key": self.idempotency_key or str(uuid.uuid4()), **headers}
        timeout = {} if self.timeout is None else {"timeout": self.timeout}
        return {**timeout, **exchange.options, "headers": headers}


@dataclass(frozen=True, slots=True)
class Resource(Generic[D]):
    http: Http
    driver: D


class Lines:
    """Reads a body line by line and removes the line ends. A last line without a line end is dropped as incomplete."""

    def __init__(self, result: ExchangeResult) -> None:
        self._result = result
        self._whole: deque[bytes] = deque()
        self._rest = b""

    def read(self) -> Steps[str | None]:
        """Returns the next line, or None at the end. Raises: httpx2.TransportError."""
        while not self._whole:
            piece: bytes | None = yield Read(self._result)
            if piece is None:
                return None
            *whole, self._rest = (self._rest + piece).split(b"\n")
            self._whole.extend(whole)
        return self._whole.popleft().decode().removesuffix("\r")


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def path_of(kind: str, identity: str, *rest: str) -> str:
    """Returns the path `kind/identity/rest`. The identity is quoted, so that it cannot change the route.

    Raises: ValueError: the identity is empty, consists of dots, or has unprintable characters.
    """
    if identity in ("", ".", "..") or not identity.isprintable():
        raise ValueError(f"{kind}: expected an id, got {identity!a}")
    return "/".join((kind, quote(identity, safe=""), *rest))


def pause(attempt: int, headers: Mapping[str, str], reason: str) -> Pause:
    """Returns the pause after a failed attempt. `attempt` counts from 0; `reason` is logged."""
    retry_after = _retry_after_seconds(headers)
    longest = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(attempt, 16))
    seconds = longest * random.uniform(0.75, 1.0) if retry_after is None else retry_after
    log.info("retrying in %.1f s: %s", seconds, reason)
    return Pause(seconds)


def connection_error(exchange: Exchange, error: httpx2.TransportError) -> APIConnectionError:
    kind = APITimeoutError if isinstance(error, httpx2.TimeoutException) else APIConnectionError
    url = str(error.request.url).partition("?")[0]
    return kind(f"{exchange.method} {url}: {error or type(error).__name__}")


def _should_retry(response: httpx2.Response) -> bool:
    override = response.headers.get("x-should-retry")
    if override in ("true", "false"):
        return override == "true"
    return response.status_code in _RETRIED_STATUSES or response.status_code >= 500


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Returns the pause in the `retry-after` headers; None without such a header or if the value is unreasonable."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except KeyError:
            continue
        except ValueError:
            try:
                seconds = parsedate_to_datetime(headers[name]).timestamp() - time.time()
            except ValueError:
                continue
        if 0 <= seconds <= MAX_RETRY_AFTER_SECONDS:
            return seconds
    return None


def _body(response: httpx2.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None
