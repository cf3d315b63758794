"""The HTTP application: its routes, and its errors in OpenAI's format.

Guard (tokens, x-request-id) ─▶ route ─▶ Generations ─▶ AsyncEngine ─▶ the engine's thread
                                      └▶ Operator ────▶ AsyncEngine
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engine.fields import InvalidRequest
from engine.openai.default_tools import template_has_tools
from engine.openai.formats import ChatFormat, TextFormat
from engine.openai.messages_api.format import MessagesFormat
from engine.openai.responses import error_body
from engine.openai.responses_api.format import ResponsesFormat
from engine.openai.tool_calls import CallForm
from engine.server.async_engine import AsyncEngine
from engine.server.body import parse_json, read_body
from engine.server.catalog import Catalog
from engine.server.errors import COUNT_TOKENS_PATH, MESSAGES_PATH, ServerFault, error_response
from engine.server.generations import Generations
from engine.server.guard import Guard
from engine.server.health import Health
from engine.server.metrics import ServerMetrics
from engine.server.operator import PATHS, LoadDrafter, Operator
from engine.server.sleeping import PATHS as SLEEP_PATHS
from engine.server.sleeping import Sleeper, Sleeping, idle_seconds_of
from engine.server.tokens import count_tokens, detokenize, tokenize
from engine.server.version import VERSION
from engine.server.worker import Engine
from engine.tokenizer import Tokenizer

_SMALL_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    model_name: str
    max_batch_size: int
    max_waiting: int = 64  # waiting choices; more are refused with 429
    max_body_bytes: int = 8 * 1024 * 1024
    token: str | None = None  # None: clients need no token
    operator_token: str | None = None  # None: there are no operator routes
    speculator_root: Path | None = None  # folder below which operators may load speculators; None: they can't
    adapter_root: Path | None = None  # folder below which operators may load LoRA adapters; None: they can't
    speculator_dir: Path | None = None  # folder of the initial drafter
    call_form: CallForm | None = None  # None: the format in the chat template

    def __post_init__(self) -> None:
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting must be 0 or more, got {self.max_waiting}")
        if self.operator_token is not None and self.operator_token == self.token:
            raise ValueError("the operator's token must differ from the clients' token")


class ServerApp:
    """The server of one process. `asgi` is the application; its lifespan starts and stops the engine's thread."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        config: ServerConfig,
        *,
        load_drafter: LoadDrafter,
        sleeper: Sleeper | None = None,
    ) -> None:
        self.config = config
        max_open = config.max_batch_size + config.max_waiting
        self.async_engine = AsyncEngine(engine, max_open=max_open)
        self.health = Health(self.async_engine)
        self.metrics = ServerMetrics(engine, model_name=config.model_name)
        self.catalog = Catalog(engine, config.model_name)
        self.generations = Generations(
            self.async_engine,
            tokenizer,
            self.metrics,
            self.catalog,
            max_seq_len=engine.max_seq_len,
            max_body_bytes=config.max_body_bytes,
            max_active=2 * max_open,
            call_form=config.call_form,
        )
        self._operator = Operator(
            self.async_engine,
            self.catalog,
            load_drafter=load_drafter,
            speculator_root=config.speculator_root,
            adapter_root=config.adapter_root,
            speculator_dir=config.speculator_dir,
        )
        self.sleeping = Sleeping(self.async_engine, sleeper, self._operator.lock)
        self.metrics.watch_sleep(self.sleeping)
        self._tokenizer = tokenizer
        self.asgi: ASGIApp = Guard(
            self._application(),
            token=config.token,
            operator_token=config.operator_token,
            operator_paths=(*PATHS, *SLEEP_PATHS),
        )

    def drain(self) -> None:
        """Makes /health return 503 and refuses new generations; running ones continue."""
        self.health.draining = True
        self.generations.draining = True

    def _application(self) -> Starlette:
        routes = [
            Route("/health", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/version", self._version, methods=["GET"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._model, methods=["GET"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/v1/audit", self._audit, methods=["POST"]),
            Route("/v1/responses", self._respond, methods=["POST"]),
            Route(MESSAGES_PATH, self._message, methods=["POST"]),
            Route(COUNT_TOKENS_PATH, self._count_tokens, methods=["POST"]),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/tokenizer_info", self._tokenizer_info, methods=["GET"]),
            Route("/detokenize", self._detokenize, methods=["POST"]),
        ]
        if self.config.operator_token is not None:
            routes += [
                Route("/v1/speculator", self._speculator, methods=["GET"]),
                Route("/v1/speculator", self._swap_speculator, methods=["POST"]),
                Route("/v1/load_lora_adapter", self._load_adapter, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._unload_adapter, methods=["POST"]),
                Route("/sleep", self._sleep, methods=["POST"]),
                Route("/wake", self._wake, methods=["POST"]),
            ]
        return Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={
                InvalidRequest: _render_invalid,
                ServerFault: _render_fault,
                HTTPException: _render_http,
                ClientDisconnect: _render_disconnect,
                Exception: _render_unexpected,
            },
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.async_engine.start()
        try:
            yield
        finally:
            await self.async_engine.stop()
            self.generations.close()

    async def _health(self, _: Request) -> Response:
        problem = await self.health.problem()
        verdict = self.async_engine.worker.engine.row_invariance
        weights = self.async_engine.worker.engine.weights_report.as_json()
        facts: dict[str, Any] = {"exact": verdict.exact, "exact_reason": verdict.reason, "weights": weights}
        facts["system_fingerprint"] = self.catalog.fingerprint(None)
        facts["sleep"] = self.sleeping.facts()
        num_open, idle_seconds = self.async_engine.num_in_use, self.async_engine.idle_seconds
        facts["load"] = {"open": num_open, "idle_seconds": round(idle_seconds, 3)}
        facts["tools"] = "template" if template_has_tools(self._tokenizer) else "default"
        if problem is None:
            return JSONResponse({"status": "ok", **facts})
        return JSONResponse({"status": "unavailable", "reason": problem, **facts}, status_code=503)

    async def _metrics(self, _: Request) -> Response:
        return Response(self.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def _models(self, _: Request) -> Response:
        return JSONResponse(self.catalog.listing())

    async def _model(self, request: Request) -> Response:
        return JSONResponse(self.catalog.describe(request.path_params["name"]))

    async def _chat(self, request: Request) -> Response:
        return await self.generations.create(request, ChatFormat())

    async def _complete(self, request: Request) -> Response:
        return await self.generations.create(request, TextFormat())

    async def _audit(self, request: Request) -> Response:
        return await self.generations.audit(request)

    async def _respond(self, request: Request) -> Response:
        return await self.generations.create(request, ResponsesFormat())

    async def _message(self, request: Request) -> Response:
        return await self.generations.create(request, MessagesFormat())

    async def _count_tokens(self, request: Request) -> Response:
        read = partial(count_tokens, tokenizer=self._tokenizer, check_model=self.catalog.adapter_of)
        return JSONResponse(await self.generations.read(request, read))

    async def _tokenize(self, request: Request) -> Response:
        check_model, max_seq_len = self.catalog.adapter_of, self.async_engine.worker.engine.max_seq_len
        read = partial(tokenize, tokenizer=self._tokenizer, max_seq_len=max_seq_len, check_model=check_model)
        return JSONResponse(await self.generations.read(request, read))

    async def _tokenizer_info(self, _: Request) -> Response:
        max_seq_len = self.async_engine.worker.engine.max_seq_len
        return JSONResponse(self._tokenizer.info() | {"model_max_length": max_seq_len})

    async def _detokenize(self, request: Request) -> Response:
        read = partial(detokenize, tokenizer=self._tokenizer, check_model=self.catalog.adapter_of)
        return JSONResponse(await self.generations.read(request, read))

    async def _speculator(self, _: Request) -> Response:
        return JSONResponse(self._operator.speculator())

    async def _swap_speculator(self, request: Request) -> Response:
        return JSONResponse(await self._operator.swap_speculator(await self._small_body(request)))

    async def _load_adapter(self, request: Request) -> Response:
        return PlainTextResponse(await self._operator.load_adapter(await self._small_body(request)))

    async def _unload_adapter(self, request: Request) -> Response:
        return PlainTextResponse(await self._operator.unload_adapter(await self._small_body(request)))

    async def _sleep(self, request: Request) -> Response:
        min_idle_seconds = idle_seconds_of(request.query_params.get("idle_seconds"))
        return JSONResponse(await self.sleeping.sleep(min_idle_seconds=min_idle_seconds))

    async def _wake(self, _: Request) -> Response:
        return JSONResponse(await self.sleeping.wake())

    async def _small_body(self, request: Request) -> Mapping[str, Any]:
        return parse_json(await read_body(request, max_bytes=_SMALL_BODY_BYTES))


async def _render_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidRequest)
    body = error_body(error.message, param=error.param, code=error.code)
    return error_response(request.url.path, body, status=error.status)


async def _render_fault(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServerFault)
    return error_response(request.url.path, error.body(), status=error.status, headers=error.headers())


async def _render_http(request: Request, error: Exception) -> Response:
    """Renders Starlette's errors for unknown routes and wrong methods."""
    assert isinstance(error, HTTPException)
    attempted = f"{request.method[:20]} {request.url.path[:200]}"
    body = error_body(f"{attempted}: {error.detail}", code=f"http_{error.status_code}")
    return error_response(request.url.path, body, status=error.status_code, headers=error.headers)


async def _render_disconnect(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # the client has disconnected; proxies log 499 in this case


async def _render_unexpected(request: Request, error: Exception) -> Response:
    body = error_body(f"internal error ({type(error).__name__})", kind="server_error", code="internal_error")
    return error_response(request.url.path, body, status=500)
