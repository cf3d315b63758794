"""Serves a request for a completion or an audit: the only way to an endpoint.

    key → organization → its deployment named `model` → the engine's port, with the engine's own token

The gateway checks only `model` in the body and passes the rest on, so the API accepts every parameter that the engine
accepts. In requests for a stream, it also switches on usage (`meter`). A request reads the database once, for its key;
its route is read at most once a second. If a spend cap applies, the request also reserves its cost. No database
connection is held while the engine answers. When the caller disconnects, the request is cancelled: the connection to
the engine is closed, and the engine stops working on the request.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Protocol

import structlog
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from opentelemetry.trace import Span, SpanKind

from control.billing.spending.reservations import spend_reserve
from control.billing.usage.services import Tokens
from control.core.api.errors import ApiError
from control.core.api.request_id import request_id
from control.core.observability import metrics, tracing
from control.serving.captures.services import MAX_BODY_BYTES
from control.serving.gateway.completion_request import CompletionRequest
from control.serving.gateway.costs import cost_bound
from control.serving.gateway.ended import Ended
from control.serving.gateway.measuring import Measuring
from control.serving.gateway.meter import metered, tokens_of
from control.serving.gateway.open_requests import OpenRequests
from control.serving.gateway.routes import Process, Route, Routes
from control.serving.gateway.shadowing import Shadows
from control.serving.gateway.upstream import Answer, Asleep, Full, NotAccepted, Target, forward
from control.serving.gateway.waking import HEADER, StillAsleep, Waking, wait_seconds
from control.serving.gateway.wire import WIRES
from control.serving.rollouts.evidence import Observation
from control.tenants.accounts.models import ApiKey
from control.tenants.accounts.scopes import INFERENCE
from control.tenants.async_requests.authentication import authenticate
from control.tenants.async_requests.event_stream import EventStream
from control.tenants.async_requests.handler import shut_down
from control.tenants.authentication.api_keys import authenticate_request
from control.tenants.authentication.caller import Caller

MAX_TRIES = 3  # limit for the number of replicas to which a request is sent until one of them accepts it

log = structlog.get_logger(__name__)


class Backend(Protocol):
    """What a request needs from the process that serves it."""

    routes: Routes
    open_requests: OpenRequests

    @property
    def shadows(self) -> Shadows | None:
        """Returns the sender of copies of requests; None: no copies are sent."""

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the function in a thread that may use the database."""

    async def receive_body(self, add: Callable[[int], None]) -> bytes:
        """Reads the body and calls `add` with the length of each part. Raises: ApiError: 408, 413, or from `add`."""

    async def read_body(self, raw: bytes, path: str, *, organization_id: str) -> tuple[CompletionRequest, bytes]:
        """Parses a body. Returns the request, and the body that is sent to the engine.

        Args: path: of the route of the API.
        Raises: ApiError: 400.
        """

    def begin(self, caller: Caller, reservation_id: str) -> None:
        """Is called when a request has reserved its cost, before it is sent."""

    async def end(self, ended: Ended) -> None:
        """Records the request. It is called exactly once for each request that was sent to an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """A path at which requests arrive. The routes of the API are entrances; other rooms may add their own."""

    path: str  # of the route of the API whose bodies and answers the entrance has
    read_key: Callable[[HttpRequest], ApiKey] = authenticate_request  # see `authenticate`


async def serve(request: HttpRequest, backend: Backend, entrance: Entrance) -> HttpResponseBase:
    try:
        if request.method != "POST":
            raise ApiError(
                405, f'Method "{request.method}" not allowed.', "method_not_allowed", headers={"Allow": "POST"}
            )
        # Comes first: a caller without a key must learn nothing, not even that its body is malformed.
        key = await authenticate(request, INFERENCE, backend.call, entrance.read_key)
        requests = backend.open_requests
        with ExitStack() as until_complete, requests.held_bytes(key.organization_id) as add_bytes:
            with requests.one_more_arriving(key.organization_id):
                raw = await backend.receive_body(add_bytes)
            until_complete.enter_context(requests.one_more(key.organization_id))
            return await _serve(request, raw, backend, entrance.path, key, until_complete)
    except ApiError as error:
        return error_response(error, entrance.path)


def error_response(error: ApiError, path: str) -> HttpResponse:
    """Returns a response in the shape that the clients of the API's route `path` read."""
    body = WIRES[path].error_body(error.body()["error"], status=error.status)
    return JsonResponse(body, status=error.status, headers=error.headers)


async def _serve(
    request: HttpRequest, raw: bytes, backend: Backend, path: str, key: ApiKey, until_complete: ExitStack
) -> HttpResponseBase:
    """Answers a request whose caller has been authenticated and whose body has arrived.

    Args:
        path: of the route of the API.
        until_complete: contexts that end with the last byte of the answer.
    """
    wire, limit_seconds = WIRES[path], wait_seconds(request.headers.get(HEADER))
    completion, sent = await backend.read_body(raw, path, organization_id=key.organization_id)
    caller = Caller.of(key)
    route = await backend.routes.find(key, completion.model)
    reserved = None if wire.is_free else await _reserve(backend, caller, route, completion)
    exchange = _Exchange(
        backend=backend,
        caller=caller,
        model=completion.model,
        path=path,
        named_id=route.named_id,
        base_model_id=route.base_model_id,
        opening=completion.opening,
        captured=raw if wire.is_captured and len(raw) <= MAX_BODY_BYTES else None,
        reserved=reserved,
        span=_begin_span(completion.model, path),
        measuring=_measuring(request, backend, path, caller, route, sent),
    )
    send = partial(
        forward,
        path=path,
        body=sent,
        request_id=request_id(request),
        memory=_memory(caller, route),
    )
    send = partial(_send_awake, backend.routes.waking, send, limit_seconds)
    answer = await exchange.send(send, key, route, until_complete)
    headers = {} if answer.retry_after is None else {"Retry-After": answer.retry_after}
    if isinstance(answer.body, bytes):
        await exchange.end_complete(answer.status, answer.body)
        return HttpResponse(answer.body, content_type=answer.content_type, status=answer.status, headers=headers)
    count = partial(exchange.end_stream, until_complete.pop_all())
    options = completion.usage if wire.has_usage_option else None
    stream = metered(answer.body, options=options, count=count)
    at_shutdown = wire.error_event(shut_down().body()["error"])
    return EventStream(stream, at_shutdown=at_shutdown, status=answer.status, headers=headers)


async def _send_awake(
    waking: Waking, send: Callable[[Target], Awaitable[Answer]], limit_seconds: float, target: Target
) -> Answer:
    """Sends a request to an engine. If the engine sleeps, it is woken first.

    Args: limit_seconds: how long the request may wait for the engine.
    Raises: StillAsleep, NotAccepted, and the errors of `send`.
    """
    begun = monotonic()
    while True:
        try:
            return await send(target)
        except Asleep:
            await waking.wake(target, begun=begun, limit_seconds=limit_seconds)


@dataclass(frozen=True, slots=True)
class _Reserved:
    id: str
    nanousd: int
    route: Route  # its prices determined the amount

    def note_cost(self, tokens: Tokens) -> None:
        """Reports a request that cost more than it reserved. Concurrent requests may then exceed a cap."""
        nanousd = tokens.input * self.route.input_nanousd + tokens.output * self.route.output_nanousd
        if nanousd > self.nanousd:
            metrics.reservations_exceeded.inc()
            about = {"deployment_id": self.route.named_id, "reserved_nanousd": self.nanousd, "nanousd": nanousd}
            log.warning("a request cost more than it reserved", **about)


async def _reserve(backend: Backend, caller: Caller, route: Route, request: CompletionRequest) -> _Reserved | None:
    """Returns None if no spend cap applies. Raises: ApiError: 429."""
    if not route.is_capped:
        return None
    bound = cost_bound(request, route)
    # If the caller disconnects during this call, the reservation is not released. It then expires.
    reservation_id: str = await backend.call(spend_reserve, caller=caller, nanousd=bound)
    backend.begin(caller, reservation_id)
    return _Reserved(reservation_id, bound, route)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """A request to an engine, with the facts to record when the request ends, perhaps after a long stream."""

    backend: Backend
    caller: Caller
    model: str
    path: str
    named_id: str
    base_model_id: str
    opening: str  # a hash of the conversation's beginning
    captured: bytes | None  # the body, to be kept after an opt-in; None: it is too long, or no batch can answer it
    reserved: _Reserved | None  # None: no spend cap applies
    span: Span
    measuring: Measuring

    async def send(
        self, send: Callable[[Target], Awaitable[Answer]], key: ApiKey, route: Route, until_complete: ExitStack
    ) -> Answer:
        """Sends the request to a replica, and to another one if the first did nothing for it.

        Raises: ApiError: 429, the replicas have reached their limits of requests; 502, the engine failed; 503, the
            deployment has been stopped or does not wake in time.
        """
        routes, tried = self.backend.routes, list[Process]()
        refusal: NotAccepted | None = None
        try:
            open_requests = routes.open_by_target
            while len(tried) < MAX_TRIES and (process := route.choose(self.opening, open_requests, without=tried)):
                tried.append(process)
                try:
                    with ExitStack() as counted:
                        counted.enter_context(routes.open_by_target.one_more(process.target))
                        answer = self.measuring.begin(await send(process.target), process)
                        until_complete.push(counted.pop_all())
                        return answer
                except Full as error:
                    refusal = error
                except NotAccepted as error:  # the process may have been replaced since the route was read
                    refusal = error
                    route = await routes.find(key, self.model, newer_than=route)
            assert refusal is not None, "a route has a process"
            raise refusal
        except BaseException as error:
            await self._end_failed(error, tried[-1])
            raise

    async def end_complete(self, status: int, answer: bytes) -> None:
        if status == 200 and not WIRES[self.path].is_free:
            await self._count(tokens_of(answer) or Tokens())
            return
        if status != 200:
            tracing.fail(self.span, str(status))
        self.span.end()
        await self.backend.end(self._ended(None, observation=self.measuring.ended(Tokens())))

    async def end_stream(self, until_complete: ExitStack, tokens: Tokens) -> None:
        with until_complete:
            await self._count(tokens)

    async def _count(self, tokens: Tokens) -> None:
        """Records the tokens under the model name in the request."""
        self.span.set_attribute(tracing.INPUT_TOKENS, tokens.input)
        self.span.set_attribute(tracing.OUTPUT_TOKENS, tokens.output)
        self.span.end()
        metrics.tokens.labels("endpoint", "input").inc(tokens.input)
        metrics.tokens.labels("endpoint", "output").inc(tokens.output)
        if self.reserved is not None:
            self.reserved.note_cost(tokens)
        await self.backend.end(self._ended(tokens, observation=self.measuring.ended(tokens)))

    async def _end_failed(self, error: BaseException, process: Process) -> None:
        # The process has not failed if the caller disconnected, if the engine did not wake within the caller's limit,
        # or if there are too many requests.
        is_failure = isinstance(error, ApiError) and not isinstance(error, StillAsleep | Full)
        tracing.fail(self.span, str(error.code) if isinstance(error, ApiError) else type(error).__name__)
        self.span.end()
        failed_id, observation = None, None
        if is_failure:
            failed_id, observation = process.deployment_id, self.measuring.failed(process)
        await self.backend.end(self._ended(None, failed_id=failed_id, observation=observation))

    def _ended(
        self, tokens: Tokens | None, *, failed_id: str | None = None, observation: Observation | None = None
    ) -> Ended:
        return Ended(
            caller=self.caller,
            model=self.model,
            at=timezone.now(),
            tokens=tokens,
            reservation_id=None if self.reserved is None else self.reserved.id,
            failed_id=failed_id,
            named_id=self.named_id,
            base_model_id=self.base_model_id,
            endpoint=self.path,
            body=self.captured,
            observation=observation,
        )


def _measuring(
    request: HttpRequest, backend: Backend, path: str, caller: Caller, route: Route, sent: bytes
) -> Measuring:
    wire = WIRES[path]
    return Measuring(
        trial=None if wire.is_free or wire.is_audit else route.trial,
        shadows=backend.shadows if wire.is_captured else None,
        organization_id=caller.organization_id,
        request_id=request_id(request),
        path=path,
        body=sent,
        memory=_memory(caller, route),
    )


def _memory(caller: Caller, route: Route) -> str | None:
    return (caller.project_id or caller.organization_id) if route.remembers_answers else None


def _begin_span(model: str, path: str) -> Span:
    """The caller must end the span after the last byte of the answer."""
    operation = "text_completion" if path == "/v1/completions" else "chat"  # the convention's names
    about = {tracing.OPERATION: operation, tracing.PROVIDER: "slipstream", tracing.REQUEST_MODEL: model}
    return tracing.start_span(f"{operation} {model}", about, kind=SpanKind.CLIENT)
