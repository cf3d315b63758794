"""Draws the plots of a training run:

loss.svg                       loss in nats per token, on training batches and on held-out answers
acceptance_over_steps.svg      acceptance length on held-out answers; a large dot marks the best evaluation
acceptance_per_position.svg    share of verify passes that accepted each draft position, with the best weights
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

_TRAINING, _HELD_OUT = "#9aa0a6", "#1a73e8"


def write_plots(report: Mapping[str, Any], folder: Path) -> None:
    """Writes the three files to `folder`, which is created. report: the result of `training_report`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (
        ("loss", _loss),
        ("acceptance_over_steps", _acceptance_over_steps),
        ("acceptance_per_position", _acceptance_per_position),
    ):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        draw(axes, report)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def _loss(axes: Axes, report: Mapping[str, Any]) -> None:
    history: Sequence[Mapping[str, float]] = report["history"]
    for name, label, colour in (
        ("loss", "training steps", _TRAINING),
        ("validation_loss", "held-out answers", _HELD_OUT),
    ):
        entries = [entry for entry in history if name in entry]
        axes.plot([e["step"] for e in entries], [e[name] for e in entries], label=label, color=colour, marker=".")
    axes.set_title(f"{report['method']}: loss")
    axes.set_xlabel("Step")
    axes.set_ylabel("Nats per token, mean over depths")
    axes.legend(frameon=False)


def _acceptance_over_steps(axes: Axes, report: Mapping[str, Any]) -> None:
    history: Sequence[Mapping[str, float]] = report["history"]
    axes.plot([e["step"] for e in history], [e["acceptance_length"] for e in history], color=_HELD_OUT, marker=".")
    axes.plot([report["best_step"]], [report["acceptance_length"]], color=_HELD_OUT, marker="o", markersize=9)
    axes.set_title(f"{report['method']}: best {report['acceptance_length']:.2f} at step {report['best_step']}")
    axes.set_xlabel("Step")
    axes.set_ylabel("Acceptance length on held-out answers")


def _acceptance_per_position(axes: Axes, report: Mapping[str, Any]) -> None:
    rates = report["acceptance_rate_per_position"]
    bars = axes.bar(range(1, len(rates) + 1), rates, color=_HELD_OUT)
    axes.bar_label(bars, labels=[f"{rate:.0%}" for rate in rates], padding=2)
    axes.set_title(f"{report['method']}: acceptance per position, step {report['best_step']}")
    axes.set_xlabel("Position in the draft (1 is the first draft token)")
    axes.set_ylabel("Share of passes that accepted this position")
    axes.set_ylim(0.0, 1.08)
    axes.set_xticks(range(1, len(rates) + 1))
