"""benchmarks/gpu.sh runs every part with a time limit, even if other parts fail, and prints the table last."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu.sh"
# A fake Python interpreter that records its arguments, fails for commands with $FAILING, and prints a fake table.
STUB = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
    *import*) exit 1 ;;
    *benchmarks.gpu.table*) echo "THE TABLE" ;;
    *$FAILING*) echo "what went wrong"; exit 3 ;;
esac
"""


def run(tmp_path: Path, failing: str, **environment: str) -> tuple[int, str, list[str]]:
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(STUB)
    python.chmod(0o755)
    variables = {"PYTHON": str(python), "CALLS": str(calls), "FAILING": failing, "LOGS": str(tmp_path / "logs")}
    inherited = {name: value for name, value in os.environ.items() if name not in ("MODEL", "PROMPTS", "SPECULATORS")}
    done = subprocess.run(
        [str(SCRIPT), str(tmp_path / "results")],
        env=inherited | variables | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, calls.read_text().splitlines()


def test_the_script_runs_all_parts_and_prints_the_table_last(tmp_path: Path) -> None:
    code, out, calls = run(tmp_path, "nothing", MODEL="m", PROMPTS="p", SPECULATORS="s1 s2")
    assert code == 0, out
    assert out.splitlines()[-1] == "THE TABLE"
    assert sum("benchmarks.kernels --warm" in call for call in calls) == 4
    assert sum("-m gpu" in call for call in calls) == 1
    assert [call.split("--shape ")[1].split()[0] for call in calls if "--shape" in call] == [
        *("llama-3.1-8b", "llama-3.2-1b", "qwen3-8b")
    ]
    assert any("--model m --prompts p --speculator s1 --speculator s2" in call for call in calls)


def test_the_script_names_a_failed_part_and_runs_the_others(tmp_path: Path) -> None:
    code, out, calls = run(tmp_path, "benchmarks.kernels --device")
    assert code == 1
    assert "failed: kernels;" in out
    assert "what went wrong" in out
    assert out.splitlines()[-1] == "THE TABLE"
    assert any("--shape qwen3-8b" in call for call in calls), "later parts must run"
    assert "speculation: left out" in out


def test_the_time_limits_of_all_parts_add_up_to_less_than_nine_minutes() -> None:
    lines = [line.strip() for line in SCRIPT.read_text(encoding="utf-8").splitlines()]
    seconds = [int(line.split()[2]) for line in lines if line.startswith("part ")]
    assert len(seconds) == 6
    assert sum(seconds) < 9 * 60
