"""Between the event loop and the engine's thread: takes generations in, up to a limit, and sorts reports to them.

All methods belong to the event loop. A place is taken for each choice and is free again once it ended. What a reader
has not taken yet waits in one piece per choice, so a slow one holds at most the tokens of its own answer.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from engine.fields import InvalidRequest
from engine.request import FinishReason, Request, SpeculationStats, StepOutput, TokenLogprob
from engine.server.errors import Draining, EngineBroken, Overloaded, ServerFault
from engine.server.queue_time import QueueTime
from engine.server.worker import Engine, EngineWorker, Report

_Result = TypeVar("_Result")


class _Unread:
    """What one choice's steps brought since its reader last looked."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._finish_reason: FinishReason | None = None
        self._speculation: SpeculationStats | None = None

    def add(self, output: StepOutput) -> None:
        self._token_ids += output.token_ids
        if output.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += output.logprobs
        self._finish_reason = output.finish_reason
        self._speculation = output.speculation

    def take(self, request_id: str) -> StepOutput:
        logprobs = None if self._logprobs is None else tuple(self._logprobs)
        return StepOutput(request_id, tuple(self._token_ids), logprobs, self._finish_reason, self._speculation)


class Generation:
    """The choices of one response. Whoever opened it calls `close`, which is harmless when all has ended."""

    def __init__(self, desk: "Desk", requests: Sequence[Request]) -> None:
        self._desk = desk
        self._ids = [request.request_id for request in requests]
        self._open = {request_id: index for index, request_id in enumerate(self._ids)}
        self._unread: dict[int, _Unread] = {}  # by choice, the one that has waited longest first
        self._failure: InvalidRequest | ServerFault | None = None
        self._news = asyncio.Event()

    @property
    def num_open(self) -> int:
        return len(self._open)

    async def next(self) -> tuple[int, StepOutput]:
        """What the steps since the last call added to any one choice, and that choice's index.

        Raises: InvalidRequest, ServerFault: a choice failed; the caller is to give up the others.
        """
        while not self._unread:
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        index = next(iter(self._unread))
        return index, self._unread.pop(index).take(self._ids[index])

    def cancel(self, index: int) -> None:
        """The choice's last output still comes."""
        self._desk.worker.cancel(self._ids[index])

    def close(self) -> None:
        """Gives up what has not ended."""
        for request_id in list(self._open):
            self._desk.worker.cancel(request_id)
            self._leave(request_id)

    def hear(self, report: Report) -> None:
        if report.output is not None:
            index = self._open[report.request_id]
            self._unread.setdefault(index, _Unread()).add(report.output)
        self._failure = self._failure or report.failure
        if report.failure is not None or (report.output and report.output.finish_reason is not None):
            self._leave(report.request_id)
        self._news.set()

    def fail(self, fault: ServerFault) -> None:
        """Ends it from the server's side."""
        for request_id in list(self._open):
            self._desk.worker.cancel(request_id)
            self.hear(Report(request_id, None, fault))

    def _leave(self, request_id: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self._desk.forget(request_id)


class Desk:
    """`start` before `open`."""

    def __init__(self, engine: Engine, *, max_open: int) -> None:
        """`max_open`: choices that may run or wait."""
        self.worker = EngineWorker(engine, deliver=self._deliver)
        self._max_open = max_open
        self._generations: dict[str, Generation] = {}
        self._queue_time = QueueTime()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def num_open(self) -> int:
        return len(self._generations)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.worker.start()

    async def stop(self) -> None:
        await asyncio.to_thread(self.worker.stop, 10.0)

    def open(self, requests: Sequence[Request]) -> Generation:
        """Raises: Overloaded, EngineBroken; InvalidRequest: they could never all be taken in at once."""
        if self.worker.broken:
            raise EngineBroken(f"the engine is broken: {self.worker.broken}")
        if len(requests) > self._max_open:
            raise InvalidRequest(f"n must be at most {self._max_open} on this server, got {len(requests)}", param="n")
        num_missing = self.num_open + len(requests) - self._max_open
        if num_missing > 0:
            raise Overloaded(
                f"{self.num_open} choices run or wait and this request asks for {len(requests)} more; "
                f"the limit is {self._max_open}",
                retry_after_seconds=self._queue_time.seconds_until(num_missing, time.monotonic()),
            )
        generation = Generation(self, requests)
        for request in requests:
            self._generations[request.request_id] = generation
            self.worker.submit(request)
        return generation

    async def call(self, function: Callable[[Engine], _Result]) -> _Result:
        """Runs `function` on the engine's thread, between two steps.

        Raises: EngineBroken; what the function raises.
        """
        if self.worker.broken:
            raise EngineBroken(f"the engine is broken: {self.worker.broken}")
        return await asyncio.wrap_future(self.worker.call(function))

    def fail_all(self) -> None:
        """Ends every generation because the process must end."""
        for generation in set(self._generations.values()):
            generation.fail(Draining("the server stopped before the answer was complete"))

    def forget(self, request_id: str) -> None:
        if self._generations.pop(request_id, None) is not None:
            self._queue_time.freed(time.monotonic())

    def _deliver(self, reports: list[Report]) -> None:
        """On the engine's thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._sort, reports)

    def _sort(self, reports: list[Report]) -> None:
        for report in reports:
            if (generation := self._generations.get(report.request_id)) is not None:
                generation.hear(report)
