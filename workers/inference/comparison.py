"""Answers the same prompts with several engines, the arms of an evaluation, and measures the time of each.

The arms are plain decoding, suffix decoding alone (which needs no training), the speculator, and the further drafters
with which the evaluation compares it. Prompts are answered in chunks. All arms answer each chunk, and their order
changes from one chunk to the next (A B C, C B A, B C A, ...), so that a change of the machine's speed affects all of
them.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from engine.loop import Engine
from engine.openai.responses import merged_stats
from engine.request import SpeculationStats
from engine.tokenizer import Tokenizer
from workers.failures import InvalidInputError
from workers.inference.driver import answer_rows
from workers.inference.rows import RowAnswer, RowError, RowRequest
from workers.inference.segments import Segment, SegmentedEngine
from workers.inference.timing import AnswerTiming, TimedEngine

PLAIN, SUFFIX, SPECULATIVE = ARMS = "plain", "suffix", "speculative"  # the arms of every evaluation
_MIN_CHUNK = 8  # number of rows
# Number of rows of a chunk, relative to the concurrency. At the end of a chunk the batch is only partly full, which
# matters less in long chunks.
_CHUNK_PER_CONCURRENCY = 4
_WARMUP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Arms:
    plain: Engine
    suffix: Engine
    speculative: Engine
    further: Mapping[str, Engine] = field(default_factory=dict)  # by the name of the arm

    @property
    def engines(self) -> dict[str, Engine]:
        return {PLAIN: self.plain, SUFFIX: self.suffix, SPECULATIVE: self.speculative, **self.further}


@dataclass(slots=True)
class ArmTotals:
    """The results of one arm at one concurrency."""

    num_tokens: list[int] = field(default_factory=list)  # one number per repeat
    seconds: list[float] = field(default_factory=list)  # one number per repeat
    answers: list[RowAnswer] = field(default_factory=list)  # of all repeats
    phase_seconds: dict[str, float] = field(default_factory=dict)  # sums over repeats
    segments: list[Segment] = field(default_factory=list)  # sums over repeats
    timings: list[AnswerTiming] = field(default_factory=list)  # one for each of `answers`, in the same order

    @property
    def tokens_per_second(self) -> float:
        """Returns the median over repeats."""
        return median(n / s for n, s in zip(self.num_tokens, self.seconds, strict=True))

    @property
    def speculation(self) -> SpeculationStats:
        return merged_stats(answer.speculation for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Measurement:
    concurrency: int
    plain: ArmTotals
    suffix: ArmTotals
    speculative: ArmTotals
    further: Mapping[str, ArmTotals] = field(default_factory=dict)  # by the name of the arm

    @property
    def arms(self) -> dict[str, ArmTotals]:
        """The arms of every evaluation, without the further ones."""
        return {PLAIN: self.plain, SUFFIX: self.suffix, SPECULATIVE: self.speculative}

    @property
    def all_arms(self) -> dict[str, ArmTotals]:
        return {**self.arms, **self.further}

    def speedup(self, arm: str = SPECULATIVE, *, over: str = PLAIN) -> float:
        return self.arms[arm].tokens_per_second / self.arms[over].tokens_per_second


def warm_up(arms: Arms, rows: Sequence[RowRequest], *, tokenizer: Tokenizer) -> None:
    """Answers two rows with each engine: the first passes are slower, because they allocate memory and load pages."""
    short_rows = [
        replace(row, request=replace(row.request, sampling=replace(row.request.sampling, max_tokens=_WARMUP_TOKENS)))
        for row in rows[:2]
    ]
    for engine in arms.engines.values():
        for _ in answer_rows(engine, short_rows, tokenizer=tokenizer, concurrency=len(short_rows)):
            pass


def measure(
    arms: Arms,
    rows: Sequence[RowRequest],
    *,
    tokenizer: Tokenizer,
    concurrency: int,
    repeats: int,
    on_answer: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Answers all rows `repeats` times with each arm, and returns the answers and times.

    Raises: InvalidInputError: a row cannot be answered, for example because the model's logits are not finite.
    """
    engines = arms.engines
    totals = {name: ArmTotals() for name in engines}
    segmented = {name: SegmentedEngine(each, timed=concurrency == 1, clock=clock) for name, each in engines.items()}
    timed = {name: TimedEngine(each, clock=clock) for name, each in segmented.items()}
    before = {name: dict(each.phase_seconds) for name, each in engines.items()}
    for repeat in range(repeats):
        for name, total in totals.items():
            engines[name].drafter.forget_past()  # suffix decoding would copy earlier answers to the same prompts
            total.num_tokens.append(0)
            total.seconds.append(0.0)
        for name, chunk in _turns(tuple(engines), rows, concurrency, repeat=repeat):
            started = clock()
            timed[name].restart(started)
            for outcome in answer_rows(timed[name], chunk, tokenizer=tokenizer, concurrency=concurrency):
                if isinstance(outcome, RowError):
                    where, error = outcome.row.custom_id, outcome.error
                    raise InvalidInputError(error.code, f"the row {where!r} cannot be answered: {error.message}")
                if isinstance(outcome, RowAnswer):
                    totals[name].answers.append(outcome)
                    totals[name].timings.append(timed[name].take(outcome.request.request.request_id))
                    totals[name].num_tokens[-1] += outcome.num_tokens
                    on_answer()
            totals[name].seconds[-1] += clock() - started
    for name, total in totals.items():
        total.segments = segmented[name].segments
        total.phase_seconds = {
            phase: seconds - before[name][phase] for phase, seconds in engines[name].phase_seconds.items()
        }
    return measurement_of(concurrency, totals)


def measurement_of(concurrency: int, totals: Mapping[str, ArmTotals]) -> Measurement:
    """Builds the measurement from the totals of all arms, by name."""
    further = {name: arm for name, arm in totals.items() if name not in ARMS}
    return Measurement(concurrency, totals[PLAIN], totals[SUFFIX], totals[SPECULATIVE], further)


def _turns(
    names: Sequence[str], rows: Sequence[RowRequest], concurrency: int, *, repeat: int
) -> Iterator[tuple[str, Sequence[RowRequest]]]:
    """Yields (arm, chunk) for all arms of every chunk. Every second chunk reverses the order of the previous chunk."""
    size = max(_MIN_CHUNK, _CHUNK_PER_CONCURRENCY * concurrency)
    for number, start in enumerate(range(0, len(rows), size)):
        first, is_reversed = divmod(number + repeat, 2)
        order = [names[(first + i) % len(names)] for i in range(len(names))]
        for name in reversed(order) if is_reversed else order:
            yield name, rows[start : start + size]
