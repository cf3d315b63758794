"""The plot of an evaluation: acceptance by position on the left, tokens per second by concurrency on the right."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from workers.kinds import MODEL

_PLAIN, _SUFFIX, _SPECULATIVE = "#9aa0a6", "#f9ab00", "#1a73e8"
_WIDTH = 0.27  # width of a bar; the bars of one concurrency form a group, and groups are 1 apart


def plot_report(report: dict[str, Any], path: Path) -> None:
    """Writes PNG or SVG, depending on the suffix. It uses no global state of matplotlib and needs no display."""
    figure = Figure(figsize=(11.0, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"{report['model']}, drafter {report['drafter']}, {report['dtype']} on {report['device']}: "
        f"{report['outputs_equal']} of {report['prompts_held_out']} held-out answers equal "
        + ("token for token" if report["equal_to"] == MODEL else "those of the model with the adapter")
    )
    left, right = figure.subplots(1, 2)
    _plot_acceptance(left, report)
    _plot_speed(right, report)
    figure.savefig(path)


def _plot_acceptance(axes: Axes, report: dict[str, Any]) -> None:
    rates = report["acceptance_rate_per_position"]
    bars = axes.bar(range(1, len(rates) + 1), rates, color=_SPECULATIVE)
    axes.bar_label(bars, labels=[f"{rate:.0%}" for rate in rates], padding=2)
    interval = report["acceptance_length_interval"]
    bounds = "" if interval is None else " (95 %: {:.2f} to {:.2f})".format(*interval)
    axes.set_title(f"Acceptance length {report['acceptance_length']:.2f}{bounds} tokens per pass")
    axes.set_xlabel("Position in the draft (1 is the first draft token)")
    axes.set_ylabel("Share of verify passes that accepted this position")
    axes.set_ylim(0.0, 1.08)
    axes.set_xticks(range(1, len(rates) + 1))
    axes.spines[["top", "right"]].set_visible(False)


def _plot_speed(axes: Axes, report: dict[str, Any]) -> None:
    points = sorted(report["concurrencies"], key=lambda point: point["concurrency"])
    for offset, name, label, colour in (
        (-_WIDTH, "tokens_per_second_plain", "plain", _PLAIN),
        (0.0, "tokens_per_second_suffix", "suffix decoding alone", _SUFFIX),
        (_WIDTH, "tokens_per_second_speculative", "speculator", _SPECULATIVE),
    ):
        axes.bar([i + offset for i in range(len(points))], [p[name] for p in points], _WIDTH, label=label, color=colour)
    for i, point in enumerate(points):
        for offset, arm, speedup in ((0.0, "suffix", "speedup_suffix"), (_WIDTH, "speculative", "speedup")):
            axes.annotate(
                f"{point[speedup]:.2f}x",
                (i + offset, point[f"tokens_per_second_{arm}"]),
                ha="center",
                va="bottom",
                xytext=(0, 2),
                textcoords="offset points",
            )
    axes.set_title("Speed with and without the speculator")
    axes.set_xlabel("Concurrency (answers at once)")
    axes.set_ylabel("Answer tokens per second, all answers together")
    axes.set_xticks(range(len(points)), [str(point["concurrency"]) for point in points])
    axes.margins(y=0.22)  # room for the legend above the bars
    axes.legend(frameon=False, loc="upper left", ncols=3)
    axes.spines[["top", "right"]].set_visible(False)
