"""The benchmark of training, on a tiny random model."""

import json
from pathlib import Path

import pytest

from benchmarks import train
from tests.tiny_model import make_tiny_model


def test_a_line_tells_what_was_learned_from_and_what_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"{n} and {n}?"}) + "\n" for n in range(16)))
    common = ["--model", str(make_tiny_model(tmp_path / "model")), "--prompts", str(questions)]
    common += ["--kind", "medusa", "--minutes", "0.02", "--held-out", "4", "--folder", str(tmp_path / "work")]

    assert train.main([*common, "--rows", "12", "--max-tokens", "16"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["rows"], found["held_out"]) == ("medusa", 12, 4)
    assert 12 * 2 <= found["tokens"] <= 12 * 16
    assert found["served_acceptance_length"] == found["simulated_acceptance_length"] >= 1.0

    assert train.main([*common, "--rows", "13"]) == 2
    assert "must have 17 questions, has 16" in capsys.readouterr().err
