"""Attributes verify passes to segments of answers: the phase and the context at which a pass begins.

A pass is in the phase `thinking` if the first token that it commits belongs to a reasoning trace, otherwise in the
phase `answering`. All passes of models without think markers are in the phase `answering`. The context is the number of
tokens of the prompt and the answer before the pass. A pass that crosses a boundary belongs to the segment in which it
begins.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.request import Request, StepOutput
from engine.thinking import Phase, Phases
from workers.inference.driver import RowEngine

THINKING, ANSWERING = "thinking", "answering"
CONTEXTS = (0, 512, 2048, 8192, 32768)  # the number of tokens at which each range begins


@dataclass(slots=True, kw_only=True)
class Segment:
    phase: str
    context_from: int
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    # tokens of passes with a single sequence. Only the time of these passes can be attributed to one answer.
    timed_tokens: int = 0
    seconds: float = 0.0  # duration of the passes with a single sequence


@dataclass(slots=True)
class _Place:
    """The context and the phase that the answer to one request has reached."""

    num_tokens: int  # of prompt and answer so far
    phases: Phases | None  # None: the model has no think markers, or the request is a text completion


class SegmentedEngine:
    """A `RowEngine` that passes all calls to the given engine and sums up the engine's verify passes by segment."""

    def __init__(self, engine: RowEngine, *, timed: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        """Args: timed: whether passes with a single sequence are timed. At concurrency 1, every pass has a single
        sequence."""
        self._engine = engine
        self._timed = timed
        self._clock = clock
        self._places: dict[str, _Place] = {}
        self._segments: dict[tuple[str, int], Segment] = {}

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._engine.eos_token_ids

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments.values())

    def add(self, request: Request) -> None:
        self._engine.add(request)
        thinking = request.sampling.thinking
        phases = None if thinking is None else thinking.start()
        self._places[request.request_id] = _Place(len(request.prompt_token_ids), phases)

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def step(self) -> list[StepOutput]:
        is_alone = self._timed and len(self._places) == 1
        started = self._clock()
        outputs = self._engine.step()
        seconds = self._clock() - started if is_alone else None
        for output in outputs:
            self._count(output, seconds)
        return outputs

    def _count(self, output: StepOutput, seconds: float | None) -> None:
        place = self._places[output.request_id]
        if output.num_drafted is not None:  # not the token that a prefill samples
            segment = self._segment(place)
            segment.passes += 1
            segment.drafted += output.num_drafted
            segment.accepted += max(0, len(output.token_ids) - 1)
            segment.tokens += len(output.token_ids)
            if seconds is not None:
                segment.timed_tokens += len(output.token_ids)
                segment.seconds += seconds
        place.num_tokens += len(output.token_ids)
        if place.phases is not None:
            for token in output.token_ids:
                place.phases.accept(token)
        if output.finish_reason is not None:
            del self._places[output.request_id]

    def _segment(self, place: _Place) -> Segment:
        is_thinking = place.phases is not None and place.phases.phase is Phase.THINKING
        context = CONTEXTS[bisect_right(CONTEXTS, place.num_tokens) - 1]
        key = (THINKING if is_thinking else ANSWERING, context)
        return self._segments.setdefault(key, Segment(phase=key[0], context_from=key[1]))


def figures_by_phase(plain: Sequence[Segment], speculative: Sequence[Segment]) -> list[dict[str, Any]]:
    found = {segment.phase for segment in (*plain, *speculative)}
    return [
        {"phase": phase, **_figures(*([s for s in arm if s.phase == phase] for arm in (plain, speculative)))}
        for phase in (THINKING, ANSWERING)
        if phase in found
    ]


def figures_by_context(plain: Sequence[Segment], speculative: Sequence[Segment]) -> list[dict[str, Any]]:
    found = {segment.context_from for segment in (*plain, *speculative)}
    ends: Mapping[int, int | None] = dict(zip(CONTEXTS, (*CONTEXTS[1:], None), strict=True))
    return [
        {
            "context_from": start,
            "context_to": ends[start],
            **_figures(*([s for s in arm if s.context_from == start] for arm in (plain, speculative))),
        }
        for start in CONTEXTS
        if start in found
    ]


def _figures(plain: Sequence[Segment], speculative: Sequence[Segment]) -> dict[str, Any]:
    passes, accepted = (sum(getattr(s, name) for s in speculative) for name in ("passes", "accepted"))
    slow, fast = _tokens_per_second(plain), _tokens_per_second(speculative)
    return {
        "passes": passes,
        "draft_tokens": sum(s.drafted for s in speculative),
        "accepted_draft_tokens": accepted,
        "tokens": sum(s.tokens for s in speculative),
        "acceptance_length": round(1.0 + accepted / passes, 4) if passes else None,
        "decode_tokens_per_second_plain": None if slow is None else round(slow, 3),
        "decode_tokens_per_second_speculative": None if fast is None else round(fast, 3),
        "decode_speedup": None if slow is None or fast is None else round(fast / slow, 4),
    }


def _tokens_per_second(segments: Iterable[Segment]) -> float | None:
    tokens, seconds = 0, 0.0
    for segment in segments:
        tokens += segment.timed_tokens
        seconds += segment.seconds
    return tokens / seconds if tokens and seconds > 0 else None
