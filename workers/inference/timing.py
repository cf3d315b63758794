"""Times answers: when the first and the last token arrived, and which share of the arm's time each answer used.

At a concurrency above 1, the answers of a batch use the engine together. Each step's time is divided equally among the
answers that are in the engine, so the shares of all answers add up to the arm's time. At concurrency 1 the share of an
answer is the time that it took.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.request import Request, StepOutput
from workers.inference.driver import RowEngine


@dataclass(slots=True, kw_only=True)
class AnswerTiming:
    """The times of one answer, in seconds."""

    request_seconds: float = 0.0  # from the request to the last token
    first_token_seconds: float | None = None  # from the request to the first token
    # One number per later token: the time since the answer's previous step, divided by the tokens of this step.
    token_seconds: list[float] = field(default_factory=list)
    share_seconds: float = 0.0  # the answer's share of the arm's time


@dataclass(slots=True)
class _Open:
    added_at: float
    token_at: float  # when the latest token arrived
    timing: AnswerTiming = field(default_factory=AnswerTiming)


class TimedEngine:
    """A `RowEngine` that passes all calls to the given engine and times its answers.

    The caller calls `restart` before it answers rows, and takes the timing of each answer before the next step.
    """

    def __init__(self, engine: RowEngine, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._charged_until = clock()

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._engine.eos_token_ids

    def restart(self, now: float) -> None:
        """Charges time from `now` on, because other arms have used the time before."""
        self._charged_until = now

    def take(self, request_id: str) -> AnswerTiming:
        """Returns the timing of a completed answer. A stop string may have ended it before the engine did."""
        return self._open.pop(request_id).timing

    def add(self, request: Request) -> None:
        self._engine.add(request)
        now = self._clock()
        self._open[request.request_id] = _Open(now, now)

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def step(self) -> list[StepOutput]:
        outputs = self._engine.step()
        now = self._clock()
        share = (now - self._charged_until) / max(1, len(self._open))
        self._charged_until = now
        for each in self._open.values():
            each.timing.share_seconds += share
        for output in outputs:
            if output.token_ids and output.request_id in self._open:
                _record(self._open[output.request_id], len(output.token_ids), now)
        return outputs


def _record(answer: _Open, num_tokens: int, now: float) -> None:
    timing = answer.timing
    timing.request_seconds = now - answer.added_at
    if timing.first_token_seconds is None:
        timing.first_token_seconds = timing.request_seconds
        timing.token_seconds += [0.0] * (num_tokens - 1)
    else:
        timing.token_seconds += [(now - answer.token_at) / num_tokens] * num_tokens
    answer.token_at = now
