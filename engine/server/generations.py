"""Handles the requests that generate or audit answers, streamed or not; cancels requests of disconnected clients."""

import asyncio
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
from engine.openai.events import usage_comment
from engine.openai.formats import Format
from engine.openai.requests import ParsedRequest
from engine.openai.responses import Head, error_body, usage_block
from engine.openai.token_ids import add_token_ids
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

# Names the group of requests that share past answers (`engine.request.Request.memory`). The gateway sets this header,
# and its clients cannot, because the gateway passes on none of their headers.
MEMORY_HEADER = "x-slipstream-memory"
# The gateway sets this header for streams whose usage cannot be requested in the body. The stream then contains the
# usage so far as comments.
USAGE_HEADER = "x-slipstream-usage"
SEND_SECONDS = 60.0  # a client that does not read for this long is disconnected

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
        """Handles a request for answers. Raises: InvalidRequest, ServerFault: it failed before anything was sent."""
        if self.draining:
            raise Draining("the server is about to stop and takes no new requests")
        self._async_engine.check_awake()
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
        events = self._events(run, head, wire_format, _chain(first, pieces), comments=USAGE_HEADER in request.headers)
        return _EventStream(events, on_end=partial(self._end, run))

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
        return JSONResponse(add_token_ids(body, answers, run.parsed))

    async def _events(
        self,
        run: PendingResponse,
        head: Head,
        wire_format: Format,
        pieces: AsyncIterator[tuple[int, Piece]],
        *,
        comments: bool,
    ) -> AsyncIterator[bytes]:
        """Yields encoded events. `comments`: whether a comment with the usage precedes the events of each piece."""
        events = wire_format.events(head, run.parsed, tokenizer=self._tokenizer)
        try:
            for event in events.opening():
                yield event
            async for index, piece in pieces:
                usage = _usage(run)
                if encoded := b"".join(events.of(index, piece, usage)):
                    yield usage_comment(usage) + encoded if comments else encoded
            usage = _usage(run)
            encoded = b"".join(events.closing(usage, run.stats))
            yield usage_comment(usage) + encoded if comments else encoded
            return
        except InvalidRequest as invalid:
            error = error_body(invalid.message, param=invalid.param, code=invalid.code)
        except ServerFault as fault:
            error = fault.body()
        except Exception as unexpected:  # boundary of the response: 200 has been sent, so the error is sent as an event
            logger.exception("a stream failed")
            message = f"internal error ({type(unexpected).__name__})"
            error = error_body(message, kind="server_error", code="internal_error")
        for event in events.failed(error["error"]):
            yield event

    def _end(self, run: PendingResponse) -> None:
        run.close()
        self.num_active -= 1


class _EventStream(StreamingResponse):
    """A stream that calls `on_end` once: when it is complete, is aborted, or cannot start."""

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
        predictions=run.predictions,
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
