"""The benchmark `weights`, which compares weight formats, run with a tiny random model."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import weights
from engine.generate import generate
from tests.tiny_model import make_tiny_model


def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    path = folder / "questions.jsonl"
    rows = [{"question": f"what is {number} + 1?", "answer": f"{number + 1}"} for number in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--rounds", "1", "--count", "2", "--max-tokens", "8"]
    code = weights.main(["--model", str(folder), "--prompts", str(path), *options])
    return code, capsys.readouterr().out.splitlines()


def test_each_format_gets_a_perplexity_and_the_command_fails_if_answers_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_model(tmp_path / "model")
    code, lines = run(folder, capsys)
    assert code == 0
    perplexities = {row["weights"]: row["perplexity"] for row in map(json.loads, lines[:4])}
    assert list(perplexities) == list(weights.FORMATS)
    assert len(set(perplexities.values())) > 1  # the formats round the weights differently
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[6:]]
    assert [row[:2] for row in table] == [[name, drafter] for name in weights.FORMATS for drafter in ("none", "suffix")]
    assert all(row[-1] == "4 of 4" for row in table)

    def with_a_fault(engine: Any, requests: Any) -> Any:
        completions = generate(engine, requests)
        return completions if engine.drafter.name == "none" else completions[::-1]

    monkeypatch.setattr("benchmarks.weights.generate", with_a_fault)
    code, _ = run(folder, capsys)
    assert code == 1
