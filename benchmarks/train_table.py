"""Compares all kinds of speculators: runs `benchmarks.train` for each and writes a table and a plot.

    python -m benchmarks.train_table --prompts FILE.jsonl

The command trains every kind on 300 answers, then the two best kinds on 100 and on 1,000 answers. After each training,
its result is added to the folder --results with the machine, the date and the commit, and the table and the plot are
updated. A second run skips the trainings that already have a result. turbo_lora is never among the best kinds: its
adapter changes the model's answers, so that its acceptance length cannot be compared with the other kinds'.
"""

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.report import Machine
from benchmarks.train_plot import draw
from benchmarks.workload import arguments
from workers.kinds import OUTPUT_CHANGING_KINDS, TRAINED_KINDS

_ROOT = Path(__file__).resolve().parents[1]
_ROWS, _OTHER_ROWS = 300, (100, 1000)
_SHARE_OF_MINUTES = {100: 0.5, 300: 1.0, 1000: 4.0}  # number of answers -> training time / --minutes
_NUM_BEST = 2
_LINES_FILE = "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The result of one training."""

    kind: str
    rows: int  # the requested number of training answers
    found: dict[str, Any]  # the output of benchmarks.train
    commit: str  # the commit that was checked out when the training started
    date: str  # the time at which the training ended
    machine: str
    versions: dict[str, str]

    @property
    def served(self) -> float:
        return float(self.found["served_acceptance_length"])

    @property
    def simulated(self) -> float:
        return float(self.found["simulated_acceptance_length"])


def run(args: argparse.Namespace) -> list[Line]:
    """Runs the missing trainings and returns all results. Writes the files in args.results after each training."""
    lines = read(args.results)
    for kind in TRAINED_KINDS:
        _add(lines, kind, _ROWS, args)
    for rows in _OTHER_ROWS:
        for kind in best(lines):
            _add(lines, kind, rows, args)
    return lines


def read(folder: Path) -> list[Line]:
    file = folder / _LINES_FILE
    return [Line(**values) for values in json.loads(file.read_text())["lines"]] if file.exists() else []


def write(lines: Sequence[Line], folder: Path) -> None:
    """Writes results.json, table.md and plot.png."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"lines": [asdict(line) for line in lines]}
    (folder / _LINES_FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(markdown(lines) + "\n", encoding="utf-8")
    draw([(line.kind, line.rows, line.simulated, line.served) for line in lines], folder / "plot.png")


def best(lines: Sequence[Line]) -> list[str]:
    compared = [line for line in lines if line.rows == _ROWS and line.kind not in OUTPUT_CHANGING_KINDS]
    return [line.kind for line in sorted(compared, key=lambda line: -line.served)[:_NUM_BEST]]


def _add(lines: list[Line], kind: str, rows: int, args: argparse.Namespace) -> None:
    if any((line.kind, line.rows) == (kind, rows) for line in lines):
        return
    command = ["-m", "benchmarks.train", "--kind", kind, "--rows", str(rows), "--folder", str(args.folder)]
    command += ["--minutes", str(args.minutes * _SHARE_OF_MINUTES[rows]), "--draft-budget", str(args.draft_budget)]
    for name in ("model", "prompts"):
        if (path := getattr(args, name)) is not None:
            command += [f"--{name}", str(path)]
    commit = _commit()
    done = subprocess.run([sys.executable, *command], cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    del found["speculator"]  # a path of this machine
    machine = Machine.now()
    lines.append(
        Line(
            kind=kind,
            rows=rows,
            found=found,
            commit=commit,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=f"{machine.num_cores} cores {machine.processor}",
            versions={"python": platform.python_version()} | {n: version(n) for n in ("torch", "transformers")},
        )
    )
    write(lines, args.results)
    print(json.dumps(found), flush=True)


def _commit() -> str:
    """Returns the hash of the checked-out commit, with the suffix "-dirty" if there are uncommitted changes."""
    describe = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    done = subprocess.run(describe, cwd=_ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def markdown(lines: Sequence[Line]) -> str:
    headings = ("kind", "rows", "tokens", "minutes", "steps", "simulated", "served", "by position", "commit", "date")
    table = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for line in sorted(lines, key=lambda line: (line.rows, -line.served)):
        found = line.found
        rates = " ".join(f"{rate:.2f}" for rate in found["acceptance_rate_per_position"])
        cells = [line.kind, *(found[name] for name in ("rows", "tokens", "minutes", "steps"))]
        cells += [f"{line.simulated:.2f}", f"{line.served:.2f}", rates, line.commit, line.date[:10]]
        table.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*table, "", *_circumstances(lines)])


def _circumstances(lines: Sequence[Line]) -> list[str]:
    """Returns the lines below the table that describe the conditions of all trainings."""
    budgets = sorted({line.found["draft_budget"] for line in lines})
    held_out = sorted({line.found["held_out"] for line in lines})
    machines = sorted({line.machine for line in lines})
    versions = sorted({" · ".join(f"{name} {number}" for name, number in line.versions.items()) for line in lines})
    return [
        f"Acceptance length on {_joined(held_out)} held-out questions, greedy, trees of {_joined(budgets)} nodes;",
        f"minutes of processor time. {_joined(machines)}. {_joined(versions)}.",
    ]


def _joined(values: Sequence[object]) -> str:
    return " or ".join(map(str, values))


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("Trains every kind of speculator for some minutes and plots the acceptance lengths.")
    minutes = "processor time of a training on 300 answers (default 5); half of it on 100, four times as much on 1,000"
    parser.add_argument("--minutes", type=float, default=5.0, metavar="M", help=minutes)
    draft_budget = "number of draft tokens per pass (default 31)"
    parser.add_argument("--draft-budget", type=int, default=31, metavar="N", help=draft_budget)
    folder = "folder for answers and speculators (default var/train)"
    parser.add_argument("--folder", type=Path, default=_ROOT / "var" / "train", metavar="DIR", help=folder)
    results = "folder for table, plot and results (default build/train-table)"
    parser.add_argument("--results", type=Path, default=_ROOT / "build" / "train-table", metavar="DIR", help=results)
    try:
        print(markdown(run(parser.parse_args(argv))))
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
