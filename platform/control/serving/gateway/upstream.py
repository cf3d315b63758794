"""Sends one request to one engine and passes the answer on as it arrives.

If the engine fails before the first byte of its answer, the caller gets 502. Once the caller has received the status,
only the stream itself can report a failure. Therefore only whole events of a stream are passed on. If the stream ends
without the event that completes it (`last_events` in wire.py), an error event with the code `upstream_terminated` is
appended.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from time import monotonic
from weakref import WeakKeyDictionary

import httpx2

from control.core.api.errors import ApiError
from control.serving.deployments.engine_tls import EngineAddress
from control.serving.gateway.connections import EnginePools
from control.serving.gateway.meter import without_comment
from control.serving.gateway.wire import WIRES

CONNECT_SECONDS = 5.0
# The longest time to wait for the next byte from the engine. If an answer is not streamed, its first byte arrives when
# the whole answer is complete. The value is the default timeout of OpenAI's client.
SILENCE_SECONDS = 600.0
EVENT_STREAM = "text/event-stream"
_END_OF_EVENT = b"\n\n"
_NO_ANSWER = "The model's process did not answer. Try again."
_DRAINING = "server_draining"
_ASLEEP = "engine_asleep"
_FULL = "engine_overloaded"


class NotAccepted(ApiError):
    """The engine refused the connection or the token, or is about to stop. Another process may get the request."""


class Asleep(NotAccepted):
    """The engine sleeps. It will accept the request after it has been woken."""


class Full(NotAccepted):
    """The engine has reached its limit of running and waiting requests, counted over all gateways."""


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    port: int
    token: str
    operator_token: str = ""
    certificate: str = ""  # see `EngineAddress`

    @property
    def address(self) -> EngineAddress:
        return EngineAddress(self.host, self.port, self.certificate)

    def weight(self, key: str) -> bytes:
        """Returns the rank of this target for the key: of several targets, the one with the highest rank is preferred.

        When a target is added, only the keys that rank it highest move to it. When a target is removed, only the keys
        that preferred it get another preferred target.
        """
        return hashlib.sha256(f"{key} {self.host}:{self.port}".encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    content_type: str
    retry_after: str | None
    body: bytes | AsyncGenerator[bytes]  # a generator if the answer is an event stream
    waited_seconds: float = 0.0  # time until the whole answer or the first event of a stream arrived


async def forward(target: Target, path: str, body: bytes, *, request_id: str, memory: str | None) -> Answer:
    """Returns once the whole answer or the first event of a stream has arrived.

    Args:
        memory: names a group of requests. The engine may use past answers of the group as drafts; with None, it neither
            uses past answers nor keeps this one for others.
    Raises:
        ApiError: 502, the engine failed before the whole answer or the first event had arrived.
        NotAccepted: the engine did nothing for the request.
    """
    client, begun = _client(), monotonic()
    request = client.build_request(
        "POST",
        target.address.url(path),
        content=_once(body),
        headers={
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            "Authorization": f"Bearer {target.token}",
            "x-request-id": request_id,
            **({} if memory is None else {"x-slipstream-memory": memory}),
            **({} if WIRES[path].has_usage_option else {"x-slipstream-usage": "comments"}),
        },
        extensions=target.address.extensions,
    )
    try:
        response = await client.send(request, stream=True)
        content = await _begin(response, path)
    except httpx2.HTTPError as error:
        kind = NotAccepted if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout) else ApiError
        raise kind(502, _NO_ANSWER, "upstream_unavailable") from error
    if response.status_code == 401:  # the port belongs to another process now
        raise NotAccepted(502, _NO_ANSWER, "upstream_unavailable")
    if response.status_code in (429, 503) and isinstance(content, bytes):
        _check_refusal(content, {"Retry-After": response.headers.get("retry-after", "1")})
    return Answer(
        status=response.status_code,
        content_type=response.headers.get("content-type", "application/json"),
        retry_after=response.headers.get("retry-after"),
        body=content,
        waited_seconds=monotonic() - begun,
    )


async def wake(target: Target) -> None:
    """Returns when the engine is awake. Raises: NotAccepted: the engine does not answer, or cannot wake."""
    try:
        response = await _client().post(
            target.address.url("/wake"),
            headers={"Authorization": f"Bearer {target.operator_token}"},
            extensions=target.address.extensions,
        )
    except httpx2.HTTPError as error:
        raise NotAccepted(502, _NO_ANSWER, "upstream_unavailable") from error
    if response.status_code != 200:
        raise NotAccepted(502, _NO_ANSWER, "upstream_unavailable")


async def _once(body: bytes) -> AsyncGenerator[bytes]:
    """Frees the body when it has been sent. The request object itself lives until the stream of its answer ends."""
    yield body
    del body


def _check_refusal(body: bytes, headers: dict[str, str]) -> None:
    """Raises: NotAccepted: the error code in the body of a refusal says that the engine did nothing for the request."""
    try:
        code = json.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return
    if code == _DRAINING:
        raise NotAccepted(503, "The model's process is about to stop. Try again.", _DRAINING, headers=headers)
    if code == _ASLEEP:
        raise Asleep(503, "The model's process sleeps. Try again.", _ASLEEP, headers=headers)
    if code == _FULL:
        message = "The deployment's replicas are full: they cannot accept another request now. Try again."
        raise Full(429, message, "deployment_queue_full", headers=headers)


async def _begin(response: httpx2.Response, path: str) -> bytes | AsyncGenerator[bytes]:
    """Reads the whole answer or the first event. Raises: httpx2.HTTPError; the connection is then closed."""
    try:
        if not response.headers.get("content-type", "").startswith(EVENT_STREAM):
            return await response.aread()
        events = _events(response)
        first = await anext(events, b"")
        if not first:
            raise httpx2.RemoteProtocolError("the stream ended before its first event")
    except BaseException:  # also cancellation: a caller who disconnects must end the engine's work
        await response.aclose()
        raise
    return _stream(response, path, first, events)


async def _stream(
    response: httpx2.Response, path: str, first: bytes, events: AsyncGenerator[bytes]
) -> AsyncGenerator[bytes]:
    last = first
    try:
        yield first
        async for last in events:
            yield last
    except httpx2.HTTPError:
        pass  # reported below, like any end without the last event
    finally:
        await response.aclose()
    if not is_ended(last, path):
        error = ApiError(502, "The model's process ended before the answer was complete.", "upstream_terminated")
        yield WIRES[path].error_event(error.body()["error"])


async def _events(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """Yields whole events only, because half a line of JSON would break the caller's parser and hide the failure."""
    buffer = b""
    async for part in response.aiter_bytes():
        buffer += part
        whole, separator, buffer = buffer.rpartition(_END_OF_EVENT)
        if separator:
            yield whole + separator


def is_ended(events: bytes, path: str) -> bool:
    """Whether the last of the events completes a stream, or is the error that ends it."""
    return _last_event(events).startswith(WIRES[path].last_events)


def is_failed(events: bytes, path: str) -> bool:
    """Whether the last of the events is an error of the engine."""
    return _last_event(events).startswith(WIRES[path].failed_events)


def _last_event(events: bytes) -> bytes:
    last = events.rstrip(b"\n").rpartition(_END_OF_EVENT)[2]
    return without_comment(last)[1]


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = WeakKeyDictionary()


def _client() -> httpx2.AsyncClient:
    """Returns the running event loop's client: connections belong to the loop that opened them (tests have many)."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = httpx2.AsyncClient(
            timeout=httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
            transport=EnginePools(httpx2.Limits(max_connections=None, max_keepalive_connections=64)),
            trust_env=False,  # no proxy between the gateway and an engine
        )
    return _clients[loop]
