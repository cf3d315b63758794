"""Compares the new speculator with the one that serves. The functions read and write no database.

The report of an evaluation with `compare_with` has the figures of each speculator in `arms`, by the speculator's id,
measured on the same held-out prompts.
"""

from collections.abc import Mapping
from typing import Any

_FIGURES = ("acceptance_length", "tokens_per_second")


def compared(report: Mapping[str, Any], *, new: str, old: str | None, concurrency: int | None) -> dict[str, Any] | None:
    """Returns `concurrency`, and in `new` and `old` the acceptance length and tokens per second of each speculator.

    The figures are those at the given concurrency or, if it is None, those at the concurrency at which the new
    speculator gains least. The result is None if the report lacks the figures of the old speculator, because a worker
    of an earlier release began the evaluation.

    Args: old: None if the deployment serves without a speculator; `old` of the result is then None, too.
    """
    arms = {arm["name"]: arm for arm in report.get("arms", [])}
    if old is not None and old not in arms:
        return None
    news = _points(arms.get(new, report))
    olds = {} if old is None else _points(arms[old])
    judged = [
        {"concurrency": at, "new": values, "old": None if old is None else olds[at]}
        for at, values in news.items()
        if concurrency in (None, at)
    ]
    return min(judged, key=_gain)


def _points(arm: Mapping[str, Any]) -> dict[int | None, dict[str, Any]]:
    """Maps each evaluated concurrency to the figures of one speculator."""
    points = arm.get("concurrencies") or [arm]
    return {point.get("concurrency"): {name: point.get(name) for name in _FIGURES} for point in points}


def _gain(figures: Mapping[str, Any]) -> float:
    old = (figures["old"] or {}).get("acceptance_length") or 1.0
    return float(figures["new"]["acceptance_length"]) / float(old)


def objection(figures: Mapping[str, Any], min_acceptance_gain: float) -> str | None:
    """Returns why the new speculator is not good enough; None if it is good enough.

    Without an old speculator the result is None, because the gate of the pipeline has decided already.
    """
    if figures["old"] is None:
        return None
    new, old = figures["new"]["acceptance_length"], figures["old"]["acceptance_length"]
    required = old * (1.0 + min_acceptance_gain)
    if new >= required:
        return None
    return (
        f"On the held-out prompts, the new speculator's acceptance length is {new:.3f} and that of the speculator that "
        f"serves is {old:.3f}. At least {required:.3f} is required."
    )
