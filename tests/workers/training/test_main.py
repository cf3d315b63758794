"""The command `python -m workers.training`, which answers prompts and trains a speculator on the answers."""

import json
from pathlib import Path

import pytest

from engine.drafters.eagle3_module import Eagle3
from tests.workers.support import chat_rows, read_lines, write_lines
from workers.training.__main__ import main


def test_the_command_makes_a_speculator_from_prompts_and_a_second_run_reuses_the_answers(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    invalid = {"custom_id": "bad", "url": "/v1/chat/completions", "body": {"model": "tiny", "messages": []}}
    prompts = write_lines(tmp_path / "prompts.jsonl", [*chat_rows(12), invalid])
    fast = json.dumps({"max_steps": 2, "steps": 2, "evaluate_every": 2})
    arguments = [str(tiny_model), str(prompts), str(tmp_path / "run"), "--hyperparameters", fast]
    assert main(arguments) == 0
    tokens = tmp_path / "run" / "tokens.jsonl"
    assert [row["custom_id"] for row in read_lines(tokens)] == [f"row-{i}" for i in range(12)]
    assert Eagle3.load(tmp_path / "run" / "output" / "speculator").config.target_hidden_size == 64
    assert capsys.readouterr().out.count('"event":"shard"') == 1

    assert main(arguments) == 0
    assert '"event":"shard"' not in capsys.readouterr().out
