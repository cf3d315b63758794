"""The benchmark `train_table` trains all kinds of speculators and writes a table. Here, a fake replaces training."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import train_table
from workers.kinds import TRAINED_KINDS

ACCEPTED = {"turbo_lora": 9.0, "eagle3": 3.0, "mtp": 2.5}  # acceptance lengths; the other kinds have 2


def output_of_training(kind: str, rows: int) -> str:
    length = ACCEPTED.get(kind, 2.0)
    found: dict[str, Any] = {"kind": kind, "rows": rows, "tokens": 10 * rows, "minutes": 1.0, "steps": 5}
    found |= {"simulated_acceptance_length": length, "served_acceptance_length": length}
    found |= {"draft_budget": 31, "held_out": 32}
    return json.dumps(found | {"acceptance_rate_per_position": [0.5], "speculator": "/somewhere"})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Replaces training by a fake whose third call fails. Returns the list of successful calls, (kind, rows)."""
    done: list[tuple[str, int]] = []
    run = subprocess.run
    failed: list[str] = []

    def fake(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "benchmarks.train" not in command:
            return run(command, **options)  # a command of git
        kind, rows = command[command.index("--kind") + 1], int(command[command.index("--rows") + 1])
        if len(done) == 2 and not failed:
            failed.append(kind)
            raise subprocess.CalledProcessError(2, command)
        done.append((kind, rows))
        return subprocess.CompletedProcess(command, 0, output_of_training(kind, rows))

    monkeypatch.setattr(subprocess, "run", fake)
    return done


def test_a_second_run_continues_after_a_failure_and_trains_the_two_best_kinds_on_other_numbers_of_answers(
    tmp_path: Path, trained: list[tuple[str, int]]
) -> None:
    assert train_table.main(["--results", str(tmp_path)]) == 2
    assert train_table.main(["--results", str(tmp_path)]) == 0

    all_kinds = [(kind, 300) for kind in TRAINED_KINDS]
    assert trained == [*all_kinds, ("eagle3", 100), ("mtp", 100), ("eagle3", 1000), ("mtp", 1000)]
    lines = json.loads((tmp_path / "results.json").read_text())["lines"]
    assert [(line["kind"], line["rows"]) for line in lines] == trained
    assert all(line["commit"] and line["date"] and "cores" in line["machine"] and line["versions"] for line in lines)
    assert "/somewhere" not in (tmp_path / "results.json").read_text()
    rows = [row for row in (tmp_path / "table.md").read_text().splitlines() if row.startswith("|")]
    assert len(rows) == 2 + len(trained)
    assert (tmp_path / "plot.png").stat().st_size > 1000
