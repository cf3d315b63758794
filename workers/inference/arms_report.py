"""The part of a report that compares all arms of an evaluation, if the request has further arms in `compare_with`."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np

from workers.contracts import EvaluationSpec
from workers.inference.comparison import PLAIN, SPECULATIVE, SUFFIX, ArmTotals, Measurement
from workers.inference.intervals import Run, drawn_speeds, speed_ratio_interval
from workers.inference.report import acceptance_interval, first_divergences, tokens_by_row
from workers.inference.timing import AnswerTiming

NO_DRAFTER = "none"  # the name of plain decoding in the report
_PERCENTILES = (50, 95, 99)

ARM_DEFINITIONS = {
    "outputs_equal": "Number of prompts for which all runs of plain decoding, suffix decoding and the speculator gave "
    "the same token ids.",
    "arms": "All arms: plain decoding (none), suffix decoding, the speculator, and the arms of compare_with.",
    "arms.outputs_equal": "Number of prompts for which all runs of the arm gave the token ids of the first plain run.",
    "arms.request_latency_seconds": "From the request to the last token of the answer: percentiles over answers.",
    "arms.time_to_first_token_seconds": "From the request to the first token: percentiles over answers.",
    "arms.inter_token_latency_seconds": "Time between tokens: percentiles over tokens. The time of a step is "
    "divided equally among its tokens.",
    "pairs": "For each pair of arms and concurrency: tokens_per_second of `arm` / tokens_per_second of `baseline`.",
    "pairs.interval": "95 % interval of the ratio: bootstrap over prompts (1,000 resamples, percentiles), with the "
    "same resamples in both arms. The time of a step is divided equally among its answers. Null below 2 prompts.",
}


def arms_report(measurements: Sequence[Measurement], spec: EvaluationSpec) -> dict[str, Any]:
    """Returns the entries `arms` and `pairs` of the report.

    Args: measurements: at least one; all of the same prompts.
    """
    lowest = min(measurements, key=lambda m: m.concurrency)
    reference = tokens_by_row(lowest.plain.answers)
    names = {PLAIN: NO_DRAFTER, SUFFIX: SUFFIX, SPECULATIVE: spec.speculator_name}
    drafters = {PLAIN: NO_DRAFTER, SUFFIX: SUFFIX, SPECULATIVE: spec.drafter}
    names |= {arm.name: arm.name for arm in spec.compare_with}
    drafters |= {arm.name: arm.drafter for arm in spec.compare_with}
    arms = [
        {
            "name": names[arm],
            "drafter": drafters[arm],
            "outputs_equal": _num_equal((m.all_arms[arm] for m in measurements), reference),
            "concurrencies": [{"concurrency": m.concurrency, **_figures(m.all_arms[arm])} for m in measurements],
        }
        for arm in lowest.all_arms
    ]
    return {"arms": arms, "pairs": [pair for m in measurements for pair in _pairs(m, names)]}


def _num_equal(totals: Iterable[ArmTotals], reference: Mapping[int, tuple[int, ...]]) -> int:
    answers = chain.from_iterable(arm.answers for arm in totals)
    return len(reference) - len(first_divergences(answers, reference))


def _figures(arm: ArmTotals) -> dict[str, Any]:
    timings: list[AnswerTiming] = arm.timings
    return {
        "tokens_per_second": round(arm.tokens_per_second, 3),
        "acceptance_length": round(arm.speculation.mean_acceptance_length, 4),
        "acceptance_length_interval": acceptance_interval(arm.answers),
        "request_latency_seconds": _percentiles([t.request_seconds for t in timings]),
        "time_to_first_token_seconds": _percentiles(
            [t.first_token_seconds for t in timings if t.first_token_seconds is not None]
        ),
        "inter_token_latency_seconds": _percentiles([gap for t in timings for gap in t.token_seconds]),
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Returns linearly interpolated percentiles, or None if there are no values."""
    if not seconds:
        return None
    return {f"p{q}": round(float(np.percentile(seconds, q)), 6) for q in _PERCENTILES}


def _pairs(measurement: Measurement, names: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    """Yields each pair of arms once. The baseline is the arm of the pair that comes earlier in the report."""
    arms = measurement.all_arms
    speeds = {name: drawn_speeds(_runs(arm)) for name, arm in arms.items()}
    for baseline, arm in combinations(arms, 2):
        interval = speed_ratio_interval(speeds[arm], speeds[baseline])
        yield {
            "concurrency": measurement.concurrency,
            "arm": names[arm],
            "baseline": names[baseline],
            "ratio": round(arms[arm].tokens_per_second / arms[baseline].tokens_per_second, 4),
            "interval": None if interval is None else [round(bound, 4) for bound in interval],
        }


def _runs(arm: ArmTotals) -> list[Run]:
    """Returns the arm's runs. The answers to each row must be in the order of the runs."""
    answers: dict[int, list[tuple[int, float]]] = {}
    for answer, timing in zip(arm.answers, arm.timings, strict=True):
        answers.setdefault(answer.request.row.number, []).append((answer.num_tokens, timing.share_seconds))
    by_run = zip(*(answers[number] for number in sorted(answers)), strict=True)
    return [Run(*zip(*run, strict=True)) for run in by_run]
