"""One request with its retries; knows HTTP and JSON, none of the API's objects.

Retried, twice by default: no connection, 408, 409, 429 and 5xx, after the time the server asks for, else after 0.5 s
doubling with jitter. `x-should-retry` has the last word. A POST that was sent and got no answer is not repeated: it may
have been carried out.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx2

from slipstream.errors import APIConnectionError, APIResponseError, APITimeoutError, status_error

log = logging.getLogger("slipstream")

MAX_RETRY_AFTER_SECONDS = 120.0
_RETRIED_STATUSES = (408, 409, 429)
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Http:
    """Thread-safe as far as `httpx2.Client` is."""

    def __init__(
        self, client: httpx2.Client, *, max_retries: int = 2, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client = client
        self.max_retries = max_retries
        self.sleep = sleep

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._json(self._send("GET", path, params=params))

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._json(self._send("POST", path, json={} if body is None else dict(body)))

    def delete(self, path: str) -> dict[str, Any]:
        return self._json(self._send("DELETE", path))

    def upload(self, path: str, fields: Mapping[str, str], filename: str, source: BinaryIO) -> dict[str, Any]:
        """`source` must be seekable: each attempt sends it from its start."""
        return self._json(self._send("POST", path, data=dict(fields), upload=(filename, source)))

    def pages(self, path: str, *, limit: int = 100) -> Iterator[dict[str, Any]]:
        """Every object of a list, page after page, newest first."""
        params: dict[str, Any] = {"limit": limit}
        while True:
            page = self.get(path, params)
            data = page.get("data")
            if not isinstance(data, list):
                raise APIResponseError(f"GET {path}: a list has `data`, got {sorted(page)}")
            yield from data
            if not data or not page.get("has_more"):
                return
            params["after"] = page.get("last_id") or data[-1]["id"]

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[bytes]]:
        """The body of a GET in pieces. A failure while it is read is raised, not retried."""
        response = self._send("GET", path, stream=True)
        try:
            yield response.iter_bytes()
        except httpx2.TransportError as error:
            raise _connection_error("GET", path, error) from error
        finally:
            response.close()

    def _send(
        self,
        method: str,
        path: str,
        *,
        stream: bool = False,
        upload: tuple[str, BinaryIO] | None = None,
        **options: Any,
    ) -> httpx2.Response:
        for attempt in range(self.max_retries + 1):
            if upload is not None:
                upload[1].seek(0)
                options["files"] = {"file": upload}
            is_last = attempt == self.max_retries
            try:
                response = self._client.send(
                    self._client.build_request(method, path, **options), stream=stream, follow_redirects=True
                )
            except httpx2.TransportError as error:
                may_repeat = method != "POST" or isinstance(error, _NEVER_SENT)
                if is_last or not may_repeat:
                    raise _connection_error(method, path, error) from error
                self._pause(attempt, None, f"{method} {path}: {error!r}")
                continue
            if response.status_code < 400:
                return response
            response.read()
            if is_last or not _should_retry(response):
                raise status_error(response.status_code, _body(response), response.headers.get("x-request-id"))
            self._pause(attempt, response, f"{method} {path}: {response.status_code}")
        raise AssertionError("the last attempt returns or raises")

    def _pause(self, attempt: int, response: httpx2.Response | None, reason: str) -> None:
        asked = _retry_after_seconds(response.headers) if response is not None else None
        seconds = asked if asked is not None else min(8.0, 0.5 * 2**attempt) * random.uniform(0.75, 1.0)
        log.info("retrying in %.1f s: %s", seconds, reason)
        self.sleep(seconds)

    @staticmethod
    def _json(response: httpx2.Response) -> dict[str, Any]:
        body = _body(response)
        if not isinstance(body, dict):
            where = f"{response.request.method} {response.request.url.path}"
            raise APIResponseError(f"{where}: expected a JSON object, got {response.text[:80]!r}")
        return body


def path_of(kind: str, identity: str, *rest: str) -> str:
    """`kind/identity/rest`, the identity quoted: whatever it holds, it must not name another route.

    Raises: ValueError: no identity can look like that.
    """
    if identity in ("", ".", "..") or not identity.isprintable():
        raise ValueError(f"{kind}: expected an id, got {identity!a}")
    return "/".join((kind, quote(identity, safe=""), *rest))


def _should_retry(response: httpx2.Response) -> bool:
    told = response.headers.get("x-should-retry")
    if told in ("true", "false"):
        return told == "true"
    return response.status_code in _RETRIED_STATUSES or response.status_code >= 500


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """What the server asks for; None if it does not, or asks for what no caller would sit through."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds <= MAX_RETRY_AFTER_SECONDS:
            return seconds
    return None


def _body(response: httpx2.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None


def _connection_error(method: str, path: str, error: httpx2.TransportError) -> APIConnectionError:
    kind = APITimeoutError if isinstance(error, httpx2.TimeoutException) else APIConnectionError
    return kind(f"{method} {path}: {error or type(error).__name__}")
