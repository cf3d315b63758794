"""Line charts as inline SVG, without scripts or libraries; the style sheet handles both colour schemes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from control.operations.console.rendering import number

WIDTH, HEIGHT = 320, 120
MARGIN = 6  # keeps the stroke of a line inside the picture
_SIDE, _TOP, _BOTTOM = 40, 22, 142  # bounds of the lines in a comparison; the texts are outside these bounds


@dataclass(frozen=True, slots=True)
class Line:
    title: str
    points: Sequence[tuple[float, float]]  # (step, value), sorted by step


def lines_of(entries: Iterable[tuple[float, Mapping[str, Any]]], names: Iterable[str]) -> list[Line]:
    """Returns a line for each of the `names` that has values.

    Args: entries: pairs of a step and the metrics at that step.
    """
    rows = list(entries)
    lines = [
        Line(name.replace("_", " "), [(step, float(metrics[name])) for step, metrics in rows if name in metrics])
        for name in names
    ]
    return [line for line in lines if line.points]


def charts(key: str, lines: Iterable[Line], *, unit: str) -> SafeString:
    """Draws one chart for each line. Each chart has its own scale.

    Args:
        key: identifies the charts for `live.js`.
        unit: unit of the steps.
    """
    context = {"key": key, "unit": unit, "charts": [_chart_context(line) for line in lines]}
    return render_to_string("console/charts.html", context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str  # selects the style in console.css
    title: str
    values: Sequence[float]  # one for each tick
    labels: Sequence[str]  # one for each value; empty: no label


def comparison(title: str, series: Sequence[Series], *, ticks: Sequence[str], axis: str) -> SafeString:
    """Draws several lines into one chart, with one scale that begins at 0.

    Args:
        series: at least one; each has a value and a label for every tick.
        axis: the label of the axis with the ticks.
    """
    top = max(max(line.values) for line in series) or 1.0
    step = (WIDTH - 2 * _SIDE) / max(1, len(ticks) - 1)
    xs = [_SIDE + place * step for place in range(len(ticks))] if len(ticks) > 1 else [WIDTH / 2]
    lines = []
    for line in series:
        ys = [_BOTTOM - value / top * (_BOTTOM - _TOP) for value in line.values]
        points = [{"x": x, "y": y, "label": label} for x, y, label in zip(xs, ys, line.labels, strict=True)]
        spoken = ", ".join(f"{number(value)} at {tick}" for tick, value in zip(ticks, line.values, strict=True))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        lines.append({"line": line, "points": points, "path": path, "spoken": spoken})
    marks = [{"x": x, "text": tick} for x, tick in zip(xs, ticks, strict=True)]
    grid = [{"y": _BOTTOM - share * (_BOTTOM - _TOP), "text": number(share * top)} for share in (0.0, 0.5, 1.0)]
    context = {"title": title, "lines": lines, "marks": marks, "grid": grid, "axis": axis}
    return render_to_string("console/comparison.html", context)


def _chart_context(line: Line) -> dict[str, Any]:
    """Returns the values that the template needs for one chart."""
    xs, ys = zip(*line.points, strict=True)
    points = [(_scaled(x, xs, WIDTH), HEIGHT - _scaled(y, ys, HEIGHT)) for x, y in line.points]
    return {
        "title": line.title,
        "latest": number(ys[-1]),
        "low": number(min(ys)),
        "high": number(max(ys)),
        "first": number(abs(round(xs[0]))),  # steps before now are negative; their unit is "minutes ago"
        "last": number(abs(round(xs[-1]))),
        "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in points),
        "end": points[-1],
    }


def _scaled(value: float, values: Sequence[float], size: int) -> float:
    """Returns the value's coordinate in a picture of this size: the middle of the picture if all values are equal."""
    low, high = min(values), max(values)
    share = (value - low) / (high - low) if high > low else 0.5
    return MARGIN + share * (size - 2 * MARGIN)
