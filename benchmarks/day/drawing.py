"""The plot of a day: acceptance, replicas, tokens per second and cost over time, with the steps as vertical lines."""

from itertools import accumulate
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.day.records import Day

_COLOURS = {"problems": "#0b6e4f", "json": "#c1440e"}
_BUCKET_SECONDS = 10.0


def draw(day: Day, path: Path) -> None:
    matplotlib.use("Agg")
    figure = Figure(figsize=(13, 10), layout="constrained")
    acceptance, replicas, speed, cost = figure.subplots(4, 1, sharex=True)
    _draw_acceptance(acceptance, day)
    _draw_replicas(replicas, day)
    _draw_speed(speed, day)
    _draw_cost(cost, day)
    for axes in (acceptance, replicas, speed, cost):
        for _, at in day.steps:
            axes.axvline(_minutes(day, at), color="grey", linewidth=0.6, linestyle=":")
        axes.grid(alpha=0.3)
    for name, at in day.steps:
        acceptance.annotate(
            name, (_minutes(day, at), 1.0), xycoords=("data", "axes fraction"), rotation=40, fontsize=8, va="bottom"
        )
    cost.set_xlabel("minutes")
    figure.savefig(path, dpi=110)


def tokens_by_bucket(day: Day) -> dict[int, float]:
    """Maps the number of each bucket of time to the tokens that arrived in it, spread evenly over each stream."""
    found: dict[int, float] = {}
    for stream in day.streams:
        if stream.answer is None or stream.first_token_seconds is None:
            continue
        num_tokens = max(1, len(stream.answer.token_ids))
        began = stream.started_at + stream.first_token_seconds
        for number in range(num_tokens):
            at = began + (stream.ended_at - began) * number / num_tokens
            bucket = int((at - day.started_at) // _BUCKET_SECONDS)
            found[bucket] = found.get(bucket, 0.0) + 1.0
    return found


def cost_over_time(day: Day) -> list[tuple[float, float]]:
    """Returns the cost in USD up to each time at which the ledger got lines."""
    lines = sorted((float(line["ended_at"]), float(line["cost"])) for line in day.ledger)
    return list(zip((at for at, _ in lines), accumulate(cost for _, cost in lines), strict=True))


def _minutes(day: Day, at: float) -> float:
    return (at - day.started_at) / 60.0


def _draw_acceptance(axes: Axes, day: Day) -> None:
    for domain in dict.fromkeys(stream.domain for stream in day.streams):
        measured = [each for each in day.streams if each.domain == domain and each.acceptance_length is not None]
        at = [_minutes(day, stream.ended_at) for stream in measured]
        lengths = [stream.acceptance_length for stream in measured]
        axes.scatter(at, lengths, s=12, color=_COLOURS.get(domain), label=domain)  # type: ignore[arg-type]
    for name, values, line in (
        ("reference of the alarm", [sample.reference for sample in day.samples], "--"),
        ("current value of the alarm", [sample.current for sample in day.samples], "-"),
    ):
        at = [_minutes(day, sample.at) for sample in day.samples]
        known = [float("nan") if value is None else value for value in values]
        axes.plot(at, known, line, color="black", linewidth=1.0, label=name)
    axes.set_ylabel("acceptance length")
    axes.legend(fontsize=8, loc="lower left")


def _draw_replicas(axes: Axes, day: Day) -> None:
    at = [_minutes(day, sample.at) for sample in day.samples]
    axes.step(at, [sample.replicas for sample in day.samples], where="post", label="wanted")
    axes.step(at, [sample.ready_replicas for sample in day.samples], where="post", linestyle="--", label="ready")
    axes.set_ylabel("replicas awake")
    axes.set_yticks([0, 1, 2])
    axes.legend(fontsize=8, loc="upper right")


def _draw_speed(axes: Axes, day: Day) -> None:
    buckets = tokens_by_bucket(day)
    last = max(buckets, default=0)
    at = [(number + 0.5) * _BUCKET_SECONDS / 60.0 for number in range(last + 1)]
    speeds = [buckets.get(number, 0.0) / _BUCKET_SECONDS for number in range(last + 1)]
    axes.bar(at, speeds, width=_BUCKET_SECONDS / 60.0, color="#0b6e4f")
    axes.set_ylabel("streamed tokens per second")


def _draw_cost(axes: Axes, day: Day) -> None:
    points = [(_minutes(day, at), cost) for at, cost in cost_over_time(day)]
    axes.step([0.0, *(at for at, _ in points)], [0.0, *(cost for _, cost in points)], where="post", color="#8d6a9f")
    axes.set_ylabel("cost (USD)")
