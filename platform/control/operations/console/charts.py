"""Line charts as inline SVG, without scripts or libraries; the style sheet handles both colour schemes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from control.operations.console.rendering import number

WIDTH, HEIGHT = 320, 120
MARGIN = 6  # keeps the stroke of a line inside the picture


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
    """The value's coordinate in a picture of this size; the middle if all values are equal."""
    low, high = min(values), max(values)
    share = (value - low) / (high - low) if high > low else 0.5
    return MARGIN + share * (size - 2 * MARGIN)
