"""The benchmark `formats` checks answers with output formats and measures the speed of plain requests beside them."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import formats
from engine.tokenizer import Tokenizer
from tests.tiny_model import make_tiny_model


def results_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"question": f"what is {number}?"}) + "\n" for number in range(4)))
    code = formats.main(["--model", str(folder), "--prompts", str(path), "--rounds", "1", "--count", "2"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_command_fails_unless_answers_with_a_format_are_valid_and_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_model(tmp_path / "model")
    spaces = Tokenizer.load(folder).encode(" \t\r\n")  # without the bias below, this model would write only whitespace
    for name, options in formats.FORMATS.items():
        biases = {str(token): -100 for token in spaces}
        monkeypatch.setitem(formats.FORMATS, name, options | {"logit_bias": biases})
    code, results = results_of(folder, capsys)
    assert code == 0
    beside, answered = results[: len(formats.BESIDE)], results[len(formats.BESIDE) :]
    assert [result["beside"] for result in beside] == list(formats.BESIDE)
    assert all(result["tokens_per_second_of_three"] > 0 for result in beside)
    assert [(result["format"], result["drafter"], result["valid"], result["equal"]) for result in answered] == [
        (name, drafter, 2, 2) for name in formats.FORMATS for drafter in formats.DRAFTERS
    ]

    answers_of = formats._answers

    def with_a_fault(requests: Any, options: Any, count: int) -> Any:
        answers, num_tokens, seconds = answers_of(requests, options, count)
        if requests.engine.drafter.name == "suffix":
            answers[1]["message"] = {"content": '{"steps": ["none"]}'}  # has no "answer"
        return answers, num_tokens, seconds

    monkeypatch.setattr(formats, "_answers", with_a_fault)
    code, results = results_of(folder, capsys)
    assert code == 1
    answered = results[len(formats.BESIDE) :]
    assert {(result["drafter"], result["valid"], result["equal"]) for result in answered} == {
        ("none", 2, 2),
        ("suffix", 1, 1),
        ("ngram", 2, 2),
    }
