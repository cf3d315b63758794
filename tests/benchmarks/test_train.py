"""The benchmark `train`, which trains a speculator and measures its acceptance length, with a tiny random model."""

import json
from pathlib import Path

import pytest

from benchmarks import train
from tests.tiny_model import make_tiny_model
from workers.emitter import Emit
from workers.training.__main__ import answer_prompts


def test_the_command_trains_a_speculator_and_prints_its_acceptance_length(
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


def test_the_held_out_questions_do_not_depend_on_the_number_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"question": f"{n} and {n}?"}) + "\n" for n in range(50)))

    held_out, few = train.questions(path, 10, 8)
    again, many = train.questions(path, 40, 8)

    assert set(again) == set(held_out)
    assert len(held_out) == 8
    assert many[:10] == few
    assert not set(many) & set(held_out)


def test_stored_answers_are_not_generated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, num_generated = make_tiny_model(tmp_path / "model"), []

    def counted(model: Path, prompts: Path, tokens: Path, emit: Emit) -> None:
        num_generated.append(len(prompts.read_text().splitlines()))
        answer_prompts(model, prompts, tokens, emit)

    monkeypatch.setattr(train, "answer_prompts", counted)
    for count in (3, 2, 5):
        questions = [f"{n} and {n}?" for n in range(count)]
        train.write_answers(model, questions, tmp_path / "rows.jsonl", kept=tmp_path, max_tokens=8)
        assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == count

    assert num_generated == [3, 2]  # the second call needs no new answer, the third call two


def test_with_the_option_steps_training_ends_after_this_number_of_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--model", str(make_tiny_model(tmp_path / "model")), "--kind", "medusa", "--rows", "12"]
    common += ["--held-out", "4", "--folder", str(tmp_path / "work"), "--max-tokens", "16"]
    assert train.main([*common, "--steps", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3
