"""A figure with three plots: the speed by batch size, the speedup by speculation, and a bar for each arm.

An arm is an engine with a drafting method and a weight format. The bars are speeds at the smallest batch size.
"""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.samples import Samples, Spread

_COLOURS = {"slipstream": "#0b6e4f", "vllm": "#c1440e", "transformers": "#8d6a9f", "llama.cpp": "#6c757d"}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", ":", "-.")


def draw(samples: Samples, title: str, path: Path) -> None:
    matplotlib.use("Agg")
    figure = Figure(figsize=(17, 6), layout="constrained")
    speed, gain, bars = figure.subplots(1, 3)
    sizes = sorted({sample.batch_size for sample in samples.all})
    arms = list(dict.fromkeys(sample.arm for sample in samples.all))
    _draw_speed(speed, samples, arms, sizes)
    _draw_gain(gain, samples, arms, sizes)
    _draw_bars(bars, samples, arms, sizes[0])
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)


def _style(arm: str, arms: list[str]) -> dict[str, str]:
    """The engine determines the color; the arm's index among the engine's arms determines line style and marker."""
    engine = arm.partition(" ")[0]
    index = [other for other in arms if other.partition(" ")[0] == engine].index(arm)
    return {
        "color": _COLOURS.get(engine, "black"),
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _LINES[index % len(_LINES)],
    }


def _draw_speed(axes: Axes, samples: Samples, arms: list[str], sizes: list[int]) -> None:
    for arm in arms:
        points = [(size, speed) for size in sizes if (speed := samples.speed(arm, size)) is not None]
        _line(axes, points, arm, arms)
    axes.set_yscale("log")
    axes.set_ylabel("generated tokens per second")
    axes.set_title("Speed by batch size")
    _add_size_axis(axes, sizes)


def _draw_gain(axes: Axes, samples: Samples, arms: list[str], sizes: list[int]) -> None:
    for arm in arms:
        plain = next(sample.own_plain for sample in samples.all if sample.arm == arm)
        if arm != plain:
            ratios = [(size, ratio) for size in sizes if (ratio := samples.ratio(arm, plain, size)) is not None]
            if ratios:
                _line(axes, ratios, arm, arms)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylabel("speed over the same engine without speculation")
    axes.set_title("Speedup by speculation")
    _add_size_axis(axes, sizes)


def _draw_bars(axes: Axes, samples: Samples, arms: list[str], size: int) -> None:
    speeds = [(arm, speed) for arm in arms if (speed := samples.speed(arm, size)) is not None]
    speeds.sort(key=lambda pair: pair[1].median)
    weights = {sample.arm: sample.weights for sample in samples.all}
    names = [arm if arm.endswith(weights[arm]) else f"{arm} {weights[arm]}" for arm, _ in speeds]
    axes.barh(
        names,
        [speed.median for _, speed in speeds],
        xerr=_errors([speed for _, speed in speeds]),
        color=[_style(arm, arms)["color"] for arm, _ in speeds],
        error_kw={"elinewidth": 1},
    )
    for row, (_, speed) in enumerate(speeds):
        axes.text(speed.high, row, f"  {speed.median:.0f}", va="center", fontsize=8)
    axes.margins(x=0.12)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel("generated tokens per second")
    axes.set_title(f"Speed at batch size {size} (median, quartiles)")


def _line(axes: Axes, points: list[tuple[int, Spread]], arm: str, arms: list[str]) -> None:
    spreads = [spread for _, spread in points]
    style = _style(arm, arms)
    axes.errorbar(
        [size for size, _ in points],
        [spread.median for spread in spreads],
        yerr=_errors(spreads),
        label=arm,
        markersize=5,
        capsize=2,
        linewidth=1.4,
        **style,  # type: ignore[arg-type]  # one mapping for parameters of several types
    )


def _errors(spreads: list[Spread]) -> list[list[float]]:
    """Returns the distances from the medians to the first quartiles, and to the third quartiles."""
    return [[spread.median - spread.low for spread in spreads], [spread.high - spread.median for spread in spreads]]


def _add_size_axis(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("batch size")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
