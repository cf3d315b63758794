"""The thread that runs the engine, and what happens when a request breaks a step.

    submit, cancel, call ─ command queue ─▶ thread: add, cancel, call, step ─▶ deliver(reports), on the thread

A step that raises does not say which request was to blame. Answers are a function of prompt, parameters and seed, so
they can be computed again: all requests are taken out and put back one by one, each on probation until it has got a
token further than it was. A step that raises now blames the one on probation: it fails alone, and the others go on
where they were, their readers noticing only a pause. Where requests can't even be taken out, the engine is broken.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from engine.adapters import LoraAdapter
from engine.counters import Counters
from engine.drafters.base import Drafter
from engine.fields import InvalidRequest
from engine.request import FinishReason, Request, StepOutput
from engine.server.errors import EngineBroken, GenerationFailed, ServerFault

logger = logging.getLogger(__name__)

MAX_CLEARING_STEPS = 8  # a cancelled request leaves at the next step

_Result = TypeVar("_Result")


class Adapters(Protocol):
    """What the server needs of `engine.adapters.Adapters`."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def read(self, name: str, folder: Path) -> LoraAdapter:
        """May run on any thread, beside the engine's."""

    def put(self, adapter: LoraAdapter) -> None: ...

    def unload(self, name: str) -> None: ...


class Engine(Protocol):
    """What the server needs of `engine.loop.Engine`."""

    @property
    def max_seq_len(self) -> int: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def counters(self) -> Counters: ...

    @property
    def drafter(self) -> Drafter: ...

    @property
    def adapters(self) -> Adapters: ...

    def swap_drafter(self, drafter: Drafter) -> None: ...

    def add(self, request: Request) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def step(self) -> list[StepOutput]: ...


@dataclass(frozen=True, slots=True)
class Report:
    """News of one request: what a step added, or why it ended. After a failure or a finish reason nothing follows."""

    request_id: str
    output: StepOutput | None
    failure: InvalidRequest | ServerFault | None = None


@dataclass(slots=True)
class _Live:
    request: Request
    num_delivered: int = 0  # tokens reported
    num_seen: int = 0  # tokens the engine has brought since it was last added


class EngineWorker:
    """`submit`, `cancel` and `call` may be called from any thread; `deliver` is called on the worker's own."""

    def __init__(self, engine: Engine, *, deliver: Callable[[list[Report]], None]) -> None:
        self.engine = engine
        self.broken: str | None = None
        self.last_step_at = time.monotonic()  # the last step that did not raise
        self.longest_step_seconds = 0.0  # of those that did not raise
        self.num_steps = 0
        self.in_call = False  # what the thread does now is no step
        self.reads_prompts = False  # in the present step some request has no token yet
        self.last_token_at = float("-inf")
        self._deliver = deliver
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}  # in the engine
        self._queued: deque[Request] = deque()  # behind a probation
        self._held: dict[str, _Live] = {}  # of those queued, the ones that were in the engine before
        self._probation: str | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Ends the thread after its present step; requests in the engine get no further report."""
        self._commands.put(self._stop)
        self._thread.join(timeout_seconds)

    def submit(self, request: Request) -> None:
        self._commands.put(lambda: self._submit(request))

    def cancel(self, request_id: str) -> None:
        """The request's last report follows, if it has not been made yet."""
        self._commands.put(lambda: self._cancel(request_id))

    def call(self, function: Callable[[Engine], _Result]) -> Future[_Result]:
        """Runs `function` between two steps; what it raises comes with the result. Cancelled when the thread ends."""
        future: Future[_Result] = Future()
        self._commands.put(lambda: self._call(function, future))
        return future

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_commands()
                if not self._stopping:
                    self._admit_next()
                    self._round()
        except Exception as error:  # the thread's boundary: without it nobody would learn of its end
            logger.exception("the engine's thread ends")
            self._break(error)

    def _take_commands(self) -> None:
        """Waits for a command only while there is nothing to do."""
        block = self.broken is not None or not (self.engine.has_work or self._queued)
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return
            if block:
                self.last_step_at = time.monotonic()  # idle time is no stall
            command()
            block = False

    def _stop(self) -> None:
        self._stopping = True

    def _call(self, function: Callable[[Engine], _Result], future: Future[_Result]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self.in_call = True
        try:
            future.set_result(function(self.engine))
        except Exception as error:  # the caller's boundary: the error is its result
            future.set_exception(error)
        finally:
            self.in_call = False
            self.last_step_at = time.monotonic()

    def _submit(self, request: Request) -> None:
        if self.broken:
            self._deliver([Report(request.request_id, None, EngineBroken(f"the engine is broken: {self.broken}"))])
        elif self._queued or self._probation:
            self._queued.append(request)
        else:
            self._add(request)

    def _add(self, request: Request) -> None:
        live = self._held.pop(request.request_id, None) or _Live(request)
        try:
            self.engine.add(request)
        except ValueError as error:
            self._deliver([Report(request.request_id, None, InvalidRequest(str(error)))])
        except Exception as error:  # the request's boundary: it fails alone
            logger.exception("request %s could not be added", request.request_id)
            self._deliver([Report(request.request_id, None, _failed(error))])
        else:
            live.num_seen = 0
            self._live[request.request_id] = live

    def _cancel(self, request_id: str) -> None:
        if request_id in self._live:
            self.engine.cancel(request_id)
        elif waiting := next((r for r in self._queued if r.request_id == request_id), None):
            self._queued.remove(waiting)
            self._held.pop(request_id, None)
            self._deliver([Report(request_id, StepOutput(request_id, (), None, FinishReason.CANCELLED, None))])

    def _admit_next(self) -> None:
        if self._queued and self._probation is None:
            request = self._queued.popleft()
            self._add(request)
            # The last in line has nobody behind it to protect, but its probation ends the incident.
            self._probation = request.request_id if request.request_id in self._live else None

    def _round(self) -> None:
        if self.broken or not self.engine.has_work:
            return
        self.reads_prompts = any(live.num_seen == 0 for live in self._live.values())
        started = time.monotonic()
        try:
            outputs = self.engine.step()
        except Exception as error:  # a request's boundary: see the module's docstring
            logger.exception("a step of the engine failed with %d requests", len(self._live))
            self._recover(error)
            return
        self.last_step_at = time.monotonic()
        self.num_steps += 1
        self.longest_step_seconds = max(self.longest_step_seconds, self.last_step_at - started)
        if any(output.token_ids for output in outputs):
            self.last_token_at = self.last_step_at
        if reports := [report for output in outputs if (report := self._report(output))]:
            self._deliver(reports)

    def _report(self, output: StepOutput) -> Report | None:
        """None where the reader has it already, since the request is being computed again."""
        live = self._live.get(output.request_id)
        if live is None:
            return None
        num_known = min(len(output.token_ids), live.num_delivered - live.num_seen)
        live.num_seen += len(output.token_ids)
        live.num_delivered = max(live.num_delivered, live.num_seen)
        finished = output.finish_reason is not None
        if finished:
            del self._live[output.request_id]
        if len(output.token_ids) == num_known and not finished:
            return None
        if self._probation == output.request_id:
            self._probation = None
        if num_known:
            logprobs = output.logprobs[num_known:] if output.logprobs is not None else None
            output = replace(output, token_ids=output.token_ids[num_known:], logprobs=logprobs)
        return Report(output.request_id, output)

    def _recover(self, error: Exception) -> None:
        blamed = self._probation or (next(iter(self._live)) if len(self._live) == 1 else None)
        if not self._clear():
            self._break(error)
            return
        others = [live for request_id, live in self._live.items() if request_id != blamed]
        if blamed is not None and blamed in self._live:
            self._deliver([Report(blamed, None, _failed(error))])
        self._live.clear()
        self._probation = None
        self._held.update({live.request.request_id: live for live in others})
        if blamed is None:
            self._queued.extendleft(live.request for live in reversed(others))
        else:
            for live in others:
                self._add(live.request)

    def _clear(self) -> bool:
        """Takes every request out of the engine. Returns whether that worked."""
        try:
            for request_id in self._live:
                self.engine.cancel(request_id)
            for _ in range(MAX_CLEARING_STEPS):
                if not self.engine.has_work:
                    return True
                self.engine.step()
        except Exception:
            logger.exception("requests could not be taken out of the engine after a failed step")
            return False
        return not self.engine.has_work

    def _break(self, error: Exception) -> None:
        self.broken = f"{type(error).__name__}: {error}"
        fault = EngineBroken(f"the engine is broken: {self.broken}")
        waiting = [request.request_id for request in self._queued]
        reports = [Report(request_id, None, fault) for request_id in [*self._live, *waiting]]
        self._live.clear()
        self._queued.clear()
        self._held.clear()
        self._probation = None
        self._deliver(reports)


def _failed(error: Exception) -> GenerationFailed:
    # The text is for the operator's log: it may hold more than a client should read.
    return GenerationFailed(f"the engine could not answer this request ({type(error).__name__})")
