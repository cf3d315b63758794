"""The benchmark `coverage` measures which share of the answer tokens a draft vocabulary contains."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import coverage
from tests.tiny_model import make_tiny_model
from workers.training.data import Conversation


def test_a_larger_draft_vocabulary_and_the_requests_own_prompt_cover_more_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"{n} and {n}?"}) + "\n" for n in range(16)))
    command = ["--model", str(make_tiny_model(tmp_path / "model")), "--prompts", str(questions), "--rows", "12"]
    command += ["--held-out", "4", "--max-tokens", "16", "--sizes", "150", "259", "--folder", str(tmp_path / "work")]

    assert coverage.main(command) == 0

    _, _, *rows = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()]
    sizes, alone, extended = ([float(row[column].removesuffix("%")) for row in rows] for column in (2, 3, 4))
    assert sizes[0] < sizes[1] == 150
    assert alone == sorted(alone)
    assert all(more >= few for few, more in zip(alone, extended, strict=True))


def test_a_prompt_covers_only_tokens_of_its_own_answer() -> None:
    conversations = [
        Conversation(custom_id="a", prompt_token_ids=(1, 7), completion_token_ids=(1, 2, 7, 9), cut_by_length=False),
        Conversation(custom_id="b", prompt_token_ids=(2, 9), completion_token_ids=(7, 2, 2, 9), cut_by_length=False),
    ]
    line = coverage._line(False, torch.tensor([1, 2]), conversations)
    assert line == "| none | 2 | 50.0% | 75.0% | 1 |"
