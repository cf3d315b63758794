"""Handles chat and text completions, streamed or not, and audits; cancels requests of disconnected clients."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from engine.audit.claim import parse_claim
from engine.fields import InvalidRequest
from engine.grammars.compiler import compiler_for
from engine.openai.answer import Piece
from engine.openai.formats import Format
from engine.openai.requests import ParsedRequest
from engine.openai.responses import Head, add_token_ids, error_body, usage_block, usage_chunk
from engine.openai.tool_calls import CallForm
from engine.server.async_engine import AsyncEngine
from engine.server.audits import audit
from engine.server.body import parse_json, read_body
from engine.server.catalog import Catalog
from engine.server.errors import Draining, Overloaded, ServerFault
from engine.server.metrics import ServerMetrics
from engine.server.run import PendingResponse
from engine.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Set by the gateway, which passes on no header of its caller: the group of requests that share past answers (see
# `engine.request.Request.memory`).
MEMORY_HEADER = "x-slipstream-memory"
SEND_SECONDS = 60.0  # a client that does not read for this long is disconnected

# Clients that split lines like Python's splitlines treat these characters as line ends, so they are escaped.
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}

_Result = TypeVar("_Result")


class Generations:
    """While `draining` is set, new requests are refused. `num_active`: number of incomplete responses."""

    def __init__(
        self,
        async_engine: AsyncEngine,
        tokenizer: Tokenizer,
        metrics: ServerMetrics,
        catalog: Catalog,
        *,
        max_seq_len: int,
        max_body_bytes: int,
        max_active: int,
        call_form: CallForm | None,
    ) -> None:
        """`max_active`: maximum of `num_active`, which includes requests whose bodies are still being read."""
        self.draining = False
        self.num_active = 0
        self._async_engine = async_engine
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._catalog = catalog
        self._max_seq_len = max_seq_len
        self._max_body_bytes = max_body_bytes
        self._max_active = max_active
        self._call_form = call_form
        self._grammars = compiler_for(async_engine.worker.engine, tokenizer)
        self._compiling = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
        # Tokenizing a long prompt would block the event loop. The second thread serves other prompts meanwhile.
        self._parsers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="parser")

    async def create(self, request: Request, wire_format: Format) -> Response:
        """Raises: InvalidRequest, ServerFault: the request failed before anything was sent."""
        if self.draining:
            raise Draining("the server is about to stop and takes no new requests")
        self._check_active()
        self.num_active += 1
        try:
            response = await self._respond(request, wire_format)
        except BaseException:
            self.num_active -= 1
            raise
        if not isinstance(response, _EventStream):
            self.num_active -= 1
        return response

    async def audit(self, request: Request) -> Response:
        """Handles POST /v1/audit. Raises: InvalidRequest, ServerFault."""
        if self.draining:
            raise Draining("the server is about to stop and takes no new requests")
        self._check_active()
        self.num_active += 1
        try:
            return await self._audit(request)
        finally:
            self.num_active -= 1

    def close(self) -> None:
        self._grammars.close()

    async def read(self, request: Request, read: Callable[[Mapping[str, Any]], _Result]) -> _Result:
        """Returns `read(body)`, computed outside of the event loop. Raises: InvalidRequest, Overloaded."""
        self._check_active()
        self.num_active += 1
        try:
            return await self._read(request, read)
        finally:
            self.num_active -= 1

    def _check_active(self) -> None:
        if self.num_active >= self._max_active:
            raise Overloaded(f"{self.num_active} requests are open, the limit is {self._max_active}")

    async def _read(self, request: Request, read: Callable[[Mapping[str, Any]], _Result]) -> _Result:
        raw = await read_body(request, max_bytes=self._max_body_bytes)
        return await asyncio.get_running_loop().run_in_executor(self._parsers, lambda: read(parse_json(raw)))

    async def _audit(self, request: Request) -> Response:
        parse = partial(
            parse_claim, tokenizer=self._tokenizer, max_seq_len=self._max_seq_len, call_form=self._call_form
        )
        claim = await self._read(request, parse)
        claim = replace(claim, parsed=await self._compiled(claim.parsed))
        adapter = self._catalog.adapter_of(claim.model)
        work = audit(self._async_engine, claim, adapter=adapter, tokenizer=self._tokenizer)
        verdict = await _unless_disconnected(request, work)
        self._metrics.prompt_tokens.inc(verdict["usage"]["prompt_tokens"])
        return JSONResponse(verdict)

    async def _compiled(self, parsed: ParsedRequest) -> ParsedRequest:
        if parsed.sampling.grammar is None:
            return parsed
        return await asyncio.get_running_loop().run_in_executor(self._compiling, parsed.compiled, self._grammars)

    async def _respond(self, request: Request, wire_format: Format) -> Response:
        parse = partial(
            wire_format.parse, tokenizer=self._tokenizer, max_seq_len=self._max_seq_len, call_form=self._call_form
        )
        parsed = await self._compiled(await self._read(request, parse))
        adapter = self._catalog.adapter_of(parsed.model)
        head = Head(
            response_id=f"{wire_format.id_prefix}{uuid4().hex}",
            created=int(time.time()),
            model=adapter or self._catalog.model_name,
            seed=parsed.seed,
            limits=parsed.limits,
            fingerprint=self._catalog.fingerprint(adapter),
        )
        run = PendingResponse(
            self._async_engine,
            parsed,
            request_id=head.response_id,
            adapter=adapter,
            memory=request.headers.get(MEMORY_HEADER),
            tokenizer=self._tokenizer,
            metrics=self._metrics,
        )
        try:
            if not parsed.stream:
                return await _unless_disconnected(request, self._whole(run, head, wire_format))
            pieces = run.pieces()
            # 200 is sent with the first piece, so that a request that fails earlier gets the status code of its error.
            first = await _unless_disconnected(request, _first(pieces))
        except BaseException:
            run.close()
            raise
        return _EventStream(self._events(run, head, wire_format, first, pieces), on_end=partial(self._end, run))

    async def _whole(self, run: PendingResponse, head: Head, wire_format: Format) -> Response:
        async for _ in run.pieces():
            pass
        answers = run.answers()
        body = wire_format.whole(
            head,
            answers,
            num_prompt_tokens=run.parsed.num_prompt_tokens,
            num_cached_tokens=run.num_cached_tokens,
            stats=run.stats,
            tokenizer=self._tokenizer,
            calls=run.parsed.calls,
        )
        if run.parsed.return_token_ids:
            add_token_ids(body, [run.parsed.prompts[prompt] for prompt, _ in run.parsed.choices], answers)
        return JSONResponse(body)

    async def _events(
        self,
        run: PendingResponse,
        head: Head,
        wire_format: Format,
        first: tuple[int, Piece],
        rest: AsyncIterator[tuple[int, Piece]],
    ) -> AsyncIterator[bytes]:
        # OpenAI's clients expect this key on every chunk if they requested usage.
        extra: dict[str, Any] = {"usage": None} if run.parsed.include_usage else {}
        chunks = wire_format.chunks(head, tokenizer=self._tokenizer, calls=run.parsed.calls)
        try:
            for index in range(len(run.parsed.choices)):
                for chunk in chunks.opening(index):
                    yield _event(chunk | extra)
            async for index, piece in _chain(first, rest):
                if run.parsed.continuous_usage:
                    extra["usage"] = _usage(run)
                for chunk in chunks.of(index, piece):
                    yield _event(chunk | extra)
            if run.parsed.include_usage:
                yield _event(usage_chunk(head, wire_format.chunk_kind, usage=_usage(run), stats=run.stats))
            yield b"data: [DONE]\n\n"
        except InvalidRequest as error:
            yield _event(error_body(error.message, param=error.param, code=error.code))
        except ServerFault as fault:
            yield _event(fault.body())
        except Exception as error:  # boundary of the response: 200 has been sent, so the error is sent as an event
            logger.exception("a stream failed")
            yield _event(
                error_body(f"internal error ({type(error).__name__})", kind="server_error", code="internal_error")
            )

    def _end(self, run: PendingResponse) -> None:
        run.close()
        self.num_active -= 1


class _EventStream(StreamingResponse):
    """Calls `on_end` once, after the stream is complete, is aborted, or could not start."""

    def __init__(self, events: AsyncIterator[bytes], *, on_end: partial[None]) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            logger.info("a client read nothing for %.0f s and is disconnected", SEND_SECONDS)
        finally:
            self._on_end()


def _usage(run: PendingResponse) -> dict[str, Any]:
    return usage_block(
        num_prompt_tokens=run.parsed.num_prompt_tokens,
        num_completion_tokens=run.num_completion_tokens,
        num_cached_tokens=run.num_cached_tokens,
        num_reasoning_tokens=run.num_reasoning_tokens,
    )


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Returns the result of `work`, unless the client disconnects first.

    Raises: ClientDisconnect, or what `work` raises.
    """
    task = asyncio.create_task(work)
    disconnect = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait([task, disconnect], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for unfinished in (task, disconnect):
            unfinished.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    """Waits until the client disconnects. The body has been read, so no other message can arrive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first(pieces: AsyncIterator[tuple[int, Piece]]) -> tuple[int, Piece]:
    return await anext(pieces)


async def _chain(first: tuple[int, Piece], rest: AsyncIterator[tuple[int, Piece]]) -> AsyncIterator[tuple[int, Piece]]:
    yield first
    async for item in rest:
        yield item


def _event(chunk: dict[str, Any]) -> bytes:
    text = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text.translate(_LINE_ENDS)}\n\n".encode()
