"""The HTTP application: routes, authentication and errors in OpenAI's form.

Guard (bearer token, x-request-id) ─▶ route ─▶ Generations ─▶ Desk ─▶ the engine's thread
"""

import hmac
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.fields import InvalidRequest
from engine.responses import error_body
from engine.server.desk import Desk
from engine.server.errors import ServerFault, Unauthorized
from engine.server.formats import ChatFormat, TextFormat
from engine.server.generations import Generations
from engine.server.health import Health
from engine.server.metrics import ServerMetrics
from engine.server.worker import Engine
from engine.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    model_name: str
    max_batch_size: int
    max_waiting: int = 64  # choices beyond the batch; more are turned away with 429
    max_body_bytes: int = 8 * 1024 * 1024
    token: str | None = None  # None: open to whoever can connect

    def __post_init__(self) -> None:
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting must be 0 or more, got {self.max_waiting}")


class ServerApp:
    """What one process serves. `asgi` is the application; its lifespan starts and stops the engine's thread."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, config: ServerConfig) -> None:
        self.config = config
        self.desk = Desk(engine, max_open=config.max_batch_size + config.max_waiting)
        self.health = Health(self.desk)
        self.metrics = ServerMetrics(engine, model_name=config.model_name)
        self.generations = Generations(
            self.desk,
            tokenizer,
            self.metrics,
            model_name=config.model_name,
            max_seq_len=engine.max_seq_len,
            max_body_bytes=config.max_body_bytes,
        )
        self._created = int(time.time())
        self._max_seq_len = engine.max_seq_len
        self.asgi: ASGIApp = Guard(self._application(), token=config.token)

    def drain(self) -> None:
        """From now on /health says 503 and new generations are refused; those begun go on."""
        self.health.draining = True
        self.generations.draining = True

    def _application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._model, methods=["GET"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ],
            lifespan=self._lifespan,
            exception_handlers={
                InvalidRequest: _render_invalid,
                ServerFault: _render_fault,
                HTTPException: _render_http,
                ClientDisconnect: _render_left,
                Exception: _render_unexpected,
            },
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.desk.start()
        try:
            yield
        finally:
            await self.desk.stop()

    async def _health(self, _: Request) -> Response:
        problem = await self.health.problem()
        if problem is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unavailable", "reason": problem}, status_code=503)

    async def _metrics(self, _: Request) -> Response:
        return Response(self.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_object()]})

    async def _model(self, request: Request) -> Response:
        self.generations.check_model(request.path_params["name"])
        return JSONResponse(self._model_object())

    async def _chat(self, request: Request) -> Response:
        return await self.generations.create(request, ChatFormat())

    async def _complete(self, request: Request) -> Response:
        return await self.generations.create(request, TextFormat())

    def _model_object(self) -> dict[str, str | int]:
        return {
            "id": self.config.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "slipstream",
            "max_model_len": self._max_seq_len,
        }


class Guard:
    """Lets in who knows the token, and names every request. /health is open: it tells nothing and supervisors ask."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if _REQUEST_ID.fullmatch(asked) else f"req_{uuid4().hex}"

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        if scope["path"] != "/health" and not self._knows_token(headers):
            fault = Unauthorized("the Authorization header must be 'Bearer' and this server's token")
            await JSONResponse(fault.body(), status_code=fault.status)(scope, receive, send_named)
            return
        await self._app(scope, receive, send_named)

    def _knows_token(self, headers: Headers) -> bool:
        given = headers.get("authorization", "").encode("latin-1")
        return self._expected is None or hmac.compare_digest(given, self._expected)


async def _render_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidRequest)
    body = error_body(error.message, param=error.param, code=error.code)
    return JSONResponse(body, status_code=error.status)


async def _render_fault(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServerFault)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())


async def _render_http(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    body = error_body(f"{request.method} {request.url.path}: {error.detail}", code=f"http_{error.status_code}")
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _render_left(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; 499 is what proxies log for a client that left


async def _render_unexpected(_: Request, error: Exception) -> Response:
    body = error_body(f"internal error ({type(error).__name__})", kind="server_error", code="internal_error")
    return JSONResponse(body, status_code=500)
