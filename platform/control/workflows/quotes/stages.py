"""Estimates the cost of each stage of a pipeline, and of its endpoint, from the pilot of a quote.

    distil    tokens: the dataset's input, and the interval of the pilot's answers.
              device time: between that of the pilot, and that of the pilot for every `pilot rows` of the dataset
    train     device time: from that of the pilot (the model is loaded, and training stops early) to `max_seconds` and
              the upper bound of distil. A pass over finished answers is not slower than generating them
    evaluate  device time: each arm (three, and those of `compare_with`) answers the held-out prompts once at each
              concurrency. Lower bound: an engine is as fast as the pilot, and faster in proportion to a higher
              concurrency than the pilot's rows. Upper bound: it is slower in proportion to a lower concurrency, and
              each arm takes as long to load
    endpoint  device time: replicas x hours; an endpoint that sleeps costs less, and its tokens are not included

The expected device time of distil and evaluate is the middle of the interval; for train it is `max_seconds` + the
pilot's device time. The pilot's device time includes the loading of the model, so its speed is a lower bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from control.billing.spending.selectors import format_usd

STAGES = ("distil", "train", "evaluate", "endpoint")
NUM_ARMS = 3  # plain decoding, suffix decoding and the speculator; `compare_with` adds others
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    expected: float
    high: float

    @classmethod
    def between(cls, low: float, high: float) -> "Interval":
        return cls(low, (low + high) / 2, max(low, high))

    def times(self, factor: float) -> "Interval":
        return Interval(self.low * factor, self.expected * factor, self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotFacts:
    """What the pilot measured."""

    num_rows: int
    device_seconds: float  # device time of its last attempt
    device_kind: str
    hour_nanousd: int | None  # price of the device on which it ran; None: device time is free
    endpoint_hour_nanousd: int | None  # price of a device of this kind
    answer_tokens: Interval  # mean number of tokens of an answer

    @property
    def tokens_per_second(self) -> float:
        return max(1.0, self.answer_tokens.expected * self.num_rows) / max(0.001, self.device_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    num_rows: int
    input_nanousd: int  # price of all input tokens
    output_nanousd: int  # price of one output token


def estimate_stages(work: dict[str, Any], pilot: PilotFacts, dataset: DatasetFacts) -> list[dict[str, Any]]:
    """Returns the lines of the quote: one for each stage, in the order of `STAGES`.

    Args: work: the values of a `QuotedPipeline`.
    """
    training, evaluation, endpoint = work["training"], work["evaluation"], work["endpoint"]
    measured = f"pilot of {pilot.num_rows} rows: {pilot.device_seconds:.1f} s of device time"
    answering = _distil_seconds(pilot, dataset)
    limit, concurrencies = training["max_seconds"], ", ".join(map(str, evaluation["concurrencies"]))
    lines = [
        _line(
            "distil",
            answering,
            pilot.device_kind,
            [f"{dataset.num_rows} rows of the dataset", measured],
            price=pilot.hour_nanousd,
            tokens=_token_costs(pilot, dataset),
        ),
        _line(
            "train",
            Interval(pilot.device_seconds, limit + pilot.device_seconds, limit + answering.high),
            pilot.device_kind,
            [f"kind {training['kind']}", f"limit max_seconds: {limit:g} s", measured],
            price=pilot.hour_nanousd,
        ),
        _line(
            "evaluate",
            _evaluate_seconds(evaluation, pilot, dataset),
            pilot.device_kind,
            [
                f"{_num_held_out(evaluation, dataset)} held-out prompts at concurrency {concurrencies}",
                f"{_num_arms(evaluation)} arms",
                measured,
            ],
            price=pilot.hour_nanousd,
        ),
    ]
    if endpoint is not None:
        seconds = float(endpoint["replicas"] * endpoint["hours"] * _SECONDS_PER_HOUR)
        plan = f"plan: {endpoint['replicas']} replicas for {endpoint['hours']} hours"
        always = Interval(seconds, seconds, seconds)
        lines.append(_line("endpoint", always, pilot.device_kind, [plan], price=pilot.endpoint_hour_nanousd))
    return lines


def _token_costs(pilot: PilotFacts, dataset: DatasetFacts) -> Interval:
    """Returns nano-USD."""
    answers = pilot.answer_tokens.times(dataset.num_rows)
    return Interval(*(dataset.input_nanousd + round(each) * dataset.output_nanousd for each in _bounds(answers)))


def _distil_seconds(pilot: PilotFacts, dataset: DatasetFacts) -> Interval:
    return Interval.between(pilot.device_seconds, pilot.device_seconds * max(1.0, dataset.num_rows / pilot.num_rows))


def _evaluate_seconds(evaluation: dict[str, Any], pilot: PilotFacts, dataset: DatasetFacts) -> Interval:
    limit, num_rows = evaluation["max_tokens"], _num_held_out(evaluation, dataset)
    mean = Interval(*(each if limit is None else min(each, limit) for each in _bounds(pilot.answer_tokens)))
    fastest = slowest = 0.0
    for concurrency in evaluation["concurrencies"]:
        relative = concurrency / pilot.num_rows
        fastest += num_rows * mean.low / (pilot.tokens_per_second * max(1.0, relative))
        slowest += num_rows * mean.high / (pilot.tokens_per_second * min(1.0, relative))
    num_arms = _num_arms(evaluation)
    return Interval.between(num_arms * fastest, num_arms * (slowest + pilot.device_seconds))


def _num_arms(evaluation: dict[str, Any]) -> int:
    return NUM_ARMS + len(evaluation.get("compare_with", ()))  # quotes of earlier releases have no such key


def _num_held_out(evaluation: dict[str, Any], dataset: DatasetFacts) -> int:
    """Returns the stated number of held-out prompts; by default a tenth of the rows, as for a pipeline."""
    return evaluation["held_out"] or max(1, ceil(dataset.num_rows / 10))


def _line(
    name: str,
    seconds: Interval,
    kind: str,
    rests_on: Sequence[str],
    *,
    price: int | None,
    tokens: Interval | None = None,
) -> dict[str, Any]:
    device = seconds.times((price or 0) / _SECONDS_PER_HOUR)
    priced = f"price: {format_usd(price or 0)} for an hour of a {kind} device"
    costs = [round(each) for each in _bounds(device)]
    if tokens is not None:
        costs = [cost + int(each) for cost, each in zip(costs, _bounds(tokens), strict=True)]
    return {
        "name": name,
        "nanousd": costs,  # low, expected, high
        "device_seconds": [round(each, 3) for each in _bounds(seconds)],
        "device_kind": kind,
        "hour_nanousd": price,
        "rests_on": [*rests_on, f"no price: the time of {kind} devices is free" if price is None else priced],
    }


def _bounds(interval: Interval) -> tuple[float, float, float]:
    return interval.low, interval.expected, interval.high
