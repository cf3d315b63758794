"""A figure with two plots of the acceptance length: by kind of speculator, and by the number of training answers."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Point = tuple[str, int, float, float]  # kind, rows, simulated and served acceptance length

_COLOURS = {"simulated": "#8fbfa8", "served": "#0b6e4f"}
_BAR_WIDTH = 0.38


def draw(points: Sequence[Point], path: Path) -> None:
    matplotlib.use("Agg")
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    kinds, rows = figure.subplots(1, 2)
    # The kinds are compared at the number of training answers with which most of them were trained.
    compared = max(sorted({p[1] for p in points}), key=[p[1] for p in points].count)
    _draw_kinds(kinds, sorted((p for p in points if p[1] == compared), key=lambda p: -p[3]), compared)
    _draw_rows(rows, points)
    figure.savefig(path, dpi=110)


def _draw_kinds(axes: Axes, points: Sequence[Point], rows: int) -> None:
    x, half = range(len(points)), _BAR_WIDTH / 2
    axes.bar([center - half for center in x], [p[2] for p in points], _BAR_WIDTH, color=_COLOURS["simulated"])
    axes.bar([center + half for center in x], [p[3] for p in points], _BAR_WIDTH, color=_COLOURS["served"])
    axes.set_xticks(list(x), [p[0] for p in points])
    axes.set_ylim(bottom=1.0)
    axes.set_ylabel("acceptance length")
    axes.set_title(f"{rows} training answers: simulated (light bars), served (dark bars)")


def _draw_rows(axes: Axes, points: Sequence[Point]) -> None:
    numbers = sorted({p[1] for p in points})
    for kind in dict.fromkeys(p[0] for p in points):
        of_kind = sorted((p for p in points if p[0] == kind), key=lambda p: p[1])
        axes.plot([p[1] for p in of_kind], [p[3] for p in of_kind], marker="o", label=kind, linewidth=1.4)
    axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.minorticks_off()
    axes.set_ylim(bottom=1.0)
    axes.set_xlabel("number of training answers")
    axes.set_title("served acceptance length")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
