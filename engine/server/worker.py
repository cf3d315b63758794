"""The thread that runs the engine, and its recovery when a step raises.

    submit, cancel, call ─ command queue ─▶ thread: add, cancel, call, step ─▶ deliver(reports), on the thread

An exception in a step does not show which request caused it. Answers depend only on prompt, parameters and seed, so
they can be computed again. After an exception, all requests are therefore cancelled and added again one by one. The
request added last is on probation until it has one more token than before the exception. If a step raises during this
time, only the request on probation fails. The others continue, and their clients only see a pause. If the requests
can't be cancelled, the engine is broken.
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

from engine.counters import Counters
from engine.drafters.base import Drafter
from engine.fields import InvalidRequest
from engine.fingerprint import Fingerprint
from engine.lora.adapters import LoraAdapter
from engine.models.quantized.report import WeightsReport
from engine.request import FinishReason, Request, StepOutput
from engine.row_invariance import RowInvariance
from engine.server.errors import EngineBroken, GenerationFailed, ServerFault

logger = logging.getLogger(__name__)

MAX_CLEARING_STEPS = 8  # one step should suffice, because the next step ends a cancelled request

_Result = TypeVar("_Result")


class Adapters(Protocol):
    """The part of `engine.lora.adapters.Adapters` that the server needs."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def read(self, name: str, folder: Path) -> LoraAdapter:
        """May run on any thread while the engine runs."""

    def put(self, adapter: LoraAdapter) -> None: ...

    def unload(self, name: str) -> None: ...


class Engine(Protocol):
    """The part of `engine.loop.Engine` that the server needs."""

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

    @property
    def row_invariance(self) -> RowInvariance: ...

    @property
    def weights_report(self) -> WeightsReport: ...

    def fingerprint(self, adapter: str | None = None) -> Fingerprint | None: ...

    def swap_drafter(self, drafter: Drafter) -> None: ...

    def add(self, request: Request) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def step(self) -> list[StepOutput]: ...


@dataclass(frozen=True, slots=True)
class Report:
    """The output of a step for one request, or the failure of the request. `output` is None only for a failure.

    A report with a failure or a finish reason is the last report of a request.
    """

    request_id: str
    output: StepOutput | None
    failure: InvalidRequest | ServerFault | None = None


@dataclass(slots=True)
class _Live:
    """A request that is in the engine, or that waits to be added to the engine again."""

    request: Request
    num_delivered: int = 0  # number of tokens reported
    num_generated: int = 0  # number of tokens generated since the request was last added to the engine


class EngineWorker:
    """Runs the engine on a thread.

    `submit`, `cancel` and `call` may be called from any thread; `deliver` is called on the worker's thread.
    """

    def __init__(self, engine: Engine, *, deliver: Callable[[list[Report]], None]) -> None:
        self.engine = engine
        self.broken: str | None = None
        self.last_step_at = time.monotonic()  # end of the last successful step
        self.longest_step_seconds = 0.0  # maximum over the successful steps
        self.num_steps = 0
        self.in_call = False  # the thread runs a function that was passed to `call`
        self.reads_prompts = False  # a request in the current step has no token yet, so the step may prefill a prompt
        self.last_token_at = float("-inf")
        self._deliver = deliver
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}  # requests in the engine
        self._queued: deque[Request] = deque()  # requests that will be added after the current probation
        self._suspended: dict[str, _Live] = {}  # state of those queued requests that were in the engine before
        self._probation: str | None = None  # id of the request on probation
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Ends the thread after its current step; requests in the engine get no further report."""
        self._commands.put(self._stop)
        self._thread.join(timeout_seconds)

    def submit(self, request: Request) -> None:
        self._commands.put(lambda: self._submit(request))

    def cancel(self, request_id: str) -> None:
        """Cancels a request; its last report follows, unless this report was delivered already."""
        self._commands.put(lambda: self._cancel(request_id))

    def call(self, function: Callable[[Engine], _Result]) -> Future[_Result]:
        """Runs `function` between two steps. Returns the future of its result."""
        future: Future[_Result] = Future()
        self._commands.put(lambda: self._call(function, future))
        return future

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_commands()
                if not self._stopping:
                    self._add_next()
                    self._run_step()
        except Exception as error:  # boundary of the thread, which would otherwise end unnoticed
            logger.exception("the engine's thread ends")
            self._break(error)

    def _take_commands(self) -> None:
        """Runs queued commands; waits for one only if there is no other work."""
        block = self.broken is not None or not (self.engine.has_work or self._queued)
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return
            if block:
                self.last_step_at = time.monotonic()  # idle time does not count as a stall
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
        except Exception as error:  # boundary of the caller, which gets the exception from the future
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
        live = self._suspended.pop(request.request_id, None) or _Live(request)
        try:
            self.engine.add(request)
        except ValueError as error:
            self._deliver([Report(request.request_id, None, InvalidRequest(str(error)))])
        except Exception as error:  # boundary of the request: only this request fails
            logger.exception("request %s could not be added", request.request_id)
            self._deliver([Report(request.request_id, None, _failure_of(error))])
        else:
            live.num_generated = 0
            self._live[request.request_id] = live

    def _cancel(self, request_id: str) -> None:
        if request_id in self._live:
            self.engine.cancel(request_id)
        elif waiting := next((r for r in self._queued if r.request_id == request_id), None):
            self._queued.remove(waiting)
            self._suspended.pop(request_id, None)
            self._deliver([Report(request_id, StepOutput(request_id, (), None, FinishReason.CANCELLED, None))])

    def _add_next(self) -> None:
        if self._queued and self._probation is None:
            request = self._queued.popleft()
            self._add(request)
            # The last request is on probation too, although no request waits for it: its success ends the recovery.
            self._probation = request.request_id if request.request_id in self._live else None

    def _run_step(self) -> None:
        if self.broken or not self.engine.has_work:
            return
        self.reads_prompts = any(live.num_generated == 0 for live in self._live.values())
        started = time.monotonic()
        try:
            outputs = self.engine.step()
        except Exception as error:  # boundary of the requests: see the module's docstring
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
        """Returns the part of the output that was not delivered before the request was added again, if any."""
        live = self._live.get(output.request_id)
        if live is None:
            return None
        num_repeated = min(len(output.token_ids), live.num_delivered - live.num_generated)  # delivered before
        live.num_generated += len(output.token_ids)
        live.num_delivered = max(live.num_delivered, live.num_generated)
        finished = output.finish_reason is not None
        if finished:
            del self._live[output.request_id]
        if len(output.token_ids) == num_repeated and not finished:
            return None
        if self._probation == output.request_id:
            self._probation = None
        if num_repeated:
            logprobs = output.logprobs[num_repeated:] if output.logprobs is not None else None
            output = replace(output, token_ids=output.token_ids[num_repeated:], logprobs=logprobs)
        if output.failure is not None:
            fault = GenerationFailed(str(output.failure), code=output.failure.code)
            last_tokens = replace(output, finish_reason=None) if output.token_ids else None
            return Report(output.request_id, last_tokens, fault)
        return Report(output.request_id, output)

    def _recover(self, error: Exception) -> None:
        """Cancels all requests. If one request is blamed for the error, it fails; the others are added again.

        The request on probation is blamed or, if there is none, a request that was alone in the engine.
        """
        blamed = self._probation or (next(iter(self._live)) if len(self._live) == 1 else None)
        if not self._clear():
            self._break(error)
            return
        others = [live for request_id, live in self._live.items() if request_id != blamed]
        if blamed is not None and blamed in self._live:
            self._deliver([Report(blamed, None, _failure_of(error))])
        self._live.clear()
        self._probation = None
        self._suspended.update({live.request.request_id: live for live in others})
        if blamed is None:
            self._queued.extendleft(live.request for live in reversed(others))
        else:
            for live in others:
                self._add(live.request)

    def _clear(self) -> bool:
        """Cancels every request in the engine. Returns whether the engine is then without work."""
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
        self._suspended.clear()
        self._probation = None
        self._deliver(reports)


def _failure_of(error: Exception) -> GenerationFailed:
    # The error's text is only logged, because it may contain more than a client should read.
    return GenerationFailed(f"the engine could not answer this request ({type(error).__name__})")
