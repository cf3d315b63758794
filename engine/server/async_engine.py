"""Connects the event loop with the engine's thread: admits generations up to a limit and passes reports to them.

All methods run on the event loop, unless noted otherwise. Each choice (one answer of a response) counts against the
limit until it ends. Outputs that a client has not read yet are merged per choice, so the server stores at most the
tokens of one answer for each choice of a slow client.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from engine.fields import InvalidRequest
from engine.request import FinishReason, Request, SpeculationStats, StepOutput, TokenLogprob
from engine.server.errors import Asleep, Draining, EngineBroken, Overloaded, ServerFault
from engine.server.queue_time import QueueTime
from engine.server.worker import Engine, EngineWorker, Report

_Result = TypeVar("_Result")


class _PendingOutput:
    """The output of one choice since the last call of `Generation.next`."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._step_sizes: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._finish_reason: FinishReason | None = None
        self._speculation: SpeculationStats | None = None
        self._prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    def add(self, output: StepOutput) -> None:
        self._token_ids += output.token_ids
        self._step_sizes.append(len(output.token_ids))
        if output.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += output.logprobs
        self._finish_reason = output.finish_reason
        self._speculation = output.speculation
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs

    def take(self, request_id: str) -> StepOutput:
        logprobs = None if self._logprobs is None else tuple(self._logprobs)
        return StepOutput(
            request_id,
            tuple(self._token_ids),
            logprobs,
            self._finish_reason,
            self._speculation,
            prompt_logprobs=self._prompt_logprobs,
            step_sizes=tuple(self._step_sizes),
        )


class Generation:
    """The choices of one response. The caller of `AsyncEngine.open` must call `close`, even after all choices ended."""

    def __init__(self, async_engine: "AsyncEngine", requests: Sequence[Request], *, is_check: bool) -> None:
        self.is_check = is_check
        self._async_engine = async_engine
        self._ids = [request.request_id for request in requests]
        self._open = {request_id: index for index, request_id in enumerate(self._ids)}
        self._pending: dict[int, _PendingOutput] = {}  # by index of the choice; the choice that waits longest is first
        self._failure: InvalidRequest | ServerFault | None = None
        self._changed = asyncio.Event()

    @property
    def num_open(self) -> int:
        return len(self._open)

    async def next(self) -> tuple[int, StepOutput]:
        """Waits for new output. Returns the index of a choice, and all its output that was not returned before.

        Raises: InvalidRequest, ServerFault: a choice failed; the caller must close the generation.
        """
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        index = next(iter(self._pending))
        return index, self._pending.pop(index).take(self._ids[index])

    def cancel(self, index: int) -> None:
        """Cancels a choice; `next` still returns its last output."""
        self._async_engine.worker.cancel(self._ids[index])

    def close(self) -> None:
        """Cancels the choices that have not ended."""
        for request_id in list(self._open):
            self._async_engine.worker.cancel(request_id)
            self._remove(request_id)

    def on_report(self, report: Report) -> None:
        if report.output is not None:
            index = self._open[report.request_id]
            self._pending.setdefault(index, _PendingOutput()).add(report.output)
        self._failure = self._failure or report.failure
        if report.failure is not None or (report.output and report.output.finish_reason is not None):
            self._remove(report.request_id)
        self._changed.set()

    def fail(self, fault: ServerFault) -> None:
        """Ends all choices with this error."""
        for request_id in list(self._open):
            self._async_engine.worker.cancel(request_id)
            self.on_report(Report(request_id, None, fault))

    def _remove(self, request_id: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self._async_engine.forget(request_id)


class AsyncEngine:
    """The caller must call `start` before `open`."""

    def __init__(self, engine: Engine, *, max_open: int) -> None:
        """`max_open`: maximum number of choices that run or wait."""
        self.worker = EngineWorker(engine, deliver=self._deliver)
        self.refuses = False  # True while the engine sleeps, falls asleep or wakes
        self.used_at = time.monotonic()  # when the latest request ended, or the engine was started or woken
        self._max_open = max_open
        self._generations: dict[str, Generation] = {}
        self._queue_time = QueueTime()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def num_open(self) -> int:
        return len(self._generations)

    @property
    def num_in_use(self) -> int:
        """Number of choices of clients that run or wait."""
        return sum(not generation.is_check for generation in self._generations.values())

    @property
    def idle_seconds(self) -> float:
        """Seconds since the engine was used, not counting health checks; 0 while a request runs or waits."""
        return 0.0 if self.num_in_use else time.monotonic() - self.used_at

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.worker.start()

    async def stop(self) -> None:
        await asyncio.to_thread(self.worker.stop, 10.0)

    def open(self, requests: Sequence[Request], *, is_check: bool = False) -> Generation:
        """Admits the choices of one response.

        is_check: whether this is a health check, which does not count as use of the engine.

        Raises: Overloaded, Asleep, EngineBroken; InvalidRequest: there are more choices than the limit.
        """
        self.check_awake()
        if len(requests) > self._max_open:
            raise InvalidRequest(f"n must be at most {self._max_open} on this server, got {len(requests)}", param="n")
        num_missing = self.num_open + len(requests) - self._max_open
        if num_missing > 0:
            raise Overloaded(
                f"{self.num_open} choices run or wait and this request asks for {len(requests)} more; "
                f"the limit is {self._max_open}",
                retry_after_seconds=self._queue_time.seconds_until(num_missing, time.monotonic()),
            )
        generation = Generation(self, requests, is_check=is_check)
        for request in requests:
            self._generations[request.request_id] = generation
            self.worker.submit(request)
        return generation

    async def call(self, function: Callable[[Engine], _Result]) -> _Result:
        """Runs `function` on the engine's thread, between two steps.

        Raises: Asleep, EngineBroken, or what `function` raises.
        """
        self.check_awake()
        return await asyncio.wrap_future(self.worker.call(function))

    def check_awake(self) -> None:
        """Raises: Asleep, EngineBroken."""
        if self.worker.broken:
            raise EngineBroken(f"the engine is broken: {self.worker.broken}")
        if self.refuses:
            raise Asleep("an operator has put this engine to sleep")

    def fail_all(self) -> None:
        """Ends every generation with an error, because the process stops."""
        for generation in set(self._generations.values()):
            generation.fail(Draining("the server stopped before the answer was complete"))

    def forget(self, request_id: str) -> None:
        if (generation := self._generations.pop(request_id, None)) is not None:
            if not generation.is_check:
                self.used_at = time.monotonic()
            self._queue_time.choice_ended(time.monotonic())

    def _deliver(self, reports: list[Report]) -> None:
        """Runs on the engine's thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._dispatch, reports)

    def _dispatch(self, reports: list[Report]) -> None:
        for report in reports:
            if (generation := self._generations.get(report.request_id)) is not None:
                generation.on_report(report)
