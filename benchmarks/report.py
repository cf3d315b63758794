"""Writes the results of a run of `benchmarks.cpu`: a table, a plot, and a JSON file with all samples."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.claims import Verdict
from benchmarks.plot import draw
from benchmarks.samples import Sample, Samples, Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    processor: str
    num_cores: int
    load_average: tuple[float, float, float]  # before the run
    openmp_wait_policy: str
    started_at: str

    @classmethod
    def now(cls) -> "Machine":
        return cls(
            processor=_processor(),
            num_cores=len(os.sched_getaffinity(0)),
            load_average=os.getloadavg(),
            openmp_wait_policy=os.environ.get("OMP_WAIT_POLICY", "default"),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    machine: Machine
    versions: dict[str, str]
    model: str
    prompts: str
    num_prompts: int  # prompts in the file; when all have been used, later rounds use them again from the first on
    max_tokens: int
    missing: dict[str, str]  # name of an arm or engine that did not run -> reason
    samples: Samples
    verdicts: list[Verdict]

    @property
    def load_averages(self) -> list[float]:
        return [sample.load_average for sample in self.samples.all]


def write_report(report: Report, folder: Path) -> str:
    """Writes table.md, results.json and plot.png, and returns the table."""
    text = markdown(report)
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(values(report), indent=2) + "\n", encoding="utf-8")
    draw(report.samples, f"{report.model}, {report.prompts}, {report.machine.processor}", folder / "plot.png")
    return text


def values(report: Report) -> dict[str, Any]:
    return {
        "machine": asdict(report.machine),
        "versions": report.versions,
        "model": report.model,
        "prompts": report.prompts,
        "num_prompts": report.num_prompts,
        "max_tokens": report.max_tokens,
        "missing": report.missing,
        "claims": [asdict(verdict) | {"status": verdict.status} for verdict in report.verdicts],
        "samples": [asdict(sample) for sample in report.samples.all],
    }


def markdown(report: Report) -> str:
    machine, loads = report.machine, report.load_averages
    versions = " · ".join(f"{engine} {version}" for engine, version in report.versions.items())
    lines = [
        f"{report.model}, {report.prompts}, greedy, at most {report.max_tokens} tokens per answer.",
        f"{machine.processor}, {machine.num_cores} cores, OpenMP wait policy: {machine.openmp_wait_policy}, "
        f"{machine.started_at}. Load average {machine.load_average[0]:.1f} before the start"
        + (f", {min(loads):.1f} to {max(loads):.1f} during the run." if loads else "."),
        versions,
        "",
        *_table(report.samples),
        "",
        *_claims(report.verdicts),
    ]
    lines += [f"- {name} did not run: {reason}" for name, reason in report.missing.items()]
    return "\n".join(lines)


_HEADINGS = (
    "batch",
    "engine",
    "weights",
    "tok/s (quartiles)",
    "× fastest plain",
    "× own plain",
    "acceptance length",
    "equal to own plain",
    "TTFT s",
    "prefill",
    "rounds",
)


def _table(samples: Samples) -> list[str]:
    rows = [f"| {' | '.join(_HEADINGS)} |", f"|{'---|' * len(_HEADINGS)}"]
    for batch_size in sorted({sample.batch_size for sample in samples.all}):
        for arm in dict.fromkeys(sample.arm for sample in samples.all if sample.batch_size == batch_size):
            rows.append(f"| {' | '.join(_cells(samples, arm, batch_size))} |")
    return rows


def _cells(samples: Samples, arm: str, batch_size: int) -> list[str]:
    of_arm = samples.of(arm, batch_size)
    weights = of_arm[0].weights
    fastest, own = samples.fastest_plain(weights, batch_size), of_arm[0].own_plain
    speed, acceptance = samples.speed(arm, batch_size), _spread(of_arm, "acceptance_length")
    ttft = _spread(of_arm, "ttft_seconds")
    shares = [s.prefill_seconds / s.seconds for s in of_arm if s.prefill_seconds is not None]
    prefill = Spread.of(shares)
    compared = [sample for sample in of_arm if sample.equal is not None]
    equal = f"{sum(s.equal or 0 for s in compared)} of {sum(s.prompts for s in compared)}" if compared else "–"
    return [
        str(batch_size),
        arm.removesuffix(f" {weights}"),
        weights,
        f"{speed.median:.1f} ({speed.low:.1f}–{speed.high:.1f})" if speed else "–",
        _ratio(samples.ratio(arm, fastest, batch_size) if fastest else None),
        "" if arm == own else _ratio(samples.ratio(arm, own, batch_size)),
        f"{acceptance.median:.2f}" if acceptance else "–",
        "" if arm == own else equal,
        f"{ttft.median:.3f}" if ttft else "–",
        f"{prefill.median:.0%}" if prefill else "–",
        str(len(of_arm)),
    ]


def _spread(samples: Sequence[Sample], name: str) -> Spread | None:
    return Spread.of([value for sample in samples if (value := getattr(sample, name)) is not None])


def _ratio(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.median:.2f}"


def _claims(verdicts: Sequence[Verdict]) -> list[str]:
    return [_claim_line(verdict) for verdict in verdicts]


def _claim_line(verdict: Verdict) -> str:
    claim = verdict.claim
    threshold = f"≥ {claim.at_least:.2f}" + (f", aim {claim.aim:.2f}" if claim.aim else "")
    line = f"- **{verdict.status}** batch {claim.batch_size}: {claim.text} ({threshold})"
    if verdict.ratio is None:
        return line
    ratio = verdict.ratio
    measured = f"{ratio.median:.3f} ± {ratio.uncertainty:.3f}, quartiles {ratio.low:.3f}–{ratio.high:.3f}"
    return f"{line}: {measured} over {ratio.count} rounds ({verdict.arm} / {verdict.over})"
