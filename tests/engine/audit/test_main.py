"""`python -m engine.audit` prints a verdict for each line and a summary, and its exit code says if all are equal."""

import json
from pathlib import Path

import pytest

from engine.audit.__main__ import main
from engine.config import EngineConfig
from engine.load import load_engine
from engine.tokenizer import Tokenizer
from tests.engine.audit.answers import bodies, respond
from tests.tiny_model import make_tiny_model


def test_each_line_gets_a_verdict_and_the_exit_code_is_0_only_if_all_answers_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama")
    engine = load_engine(folder, drafter="ngram", config=EngineConfig(max_seq_len=256))
    requests = bodies(count=4)
    responses = respond(engine, Tokenizer.load(folder), requests)
    lines = [json.dumps({"request": q, "response": a}) for q, a in zip(requests, responses, strict=True)]
    file = tmp_path / "answers.jsonl"

    file.write_text("\n".join(lines) + "\n")
    assert main([str(folder), str(file), "--max-seq-len", "256"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one.get("verdict") for one in shown] == ["equal"] * 4 + [None]
    assert shown[-1] == {"equal": 4, "different": 0, "fingerprint_mismatch": 0, "errors": 0}

    responses[1]["choices"][0]["token_ids"][2] ^= 1
    wrong = [{"request": requests[1], "response": responses[1]}, {"request": requests[0], "response": {}}]
    file.write_text("\n".join([lines[0], *map(json.dumps, wrong), "no JSON"]))
    assert main([str(folder), str(file)]) == 1
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one.get("verdict") or one.get("error", {}).get("code") for one in shown] == [
        "equal", "different", "unknown_fingerprint", "invalid_json", None,
    ]  # fmt: skip
    assert (shown[1]["line"], shown[1]["choices"][0]["position"]) == (2, 2)
    assert shown[-1] == {"equal": 1, "different": 1, "fingerprint_mismatch": 0, "errors": 2}

    file.write_text(lines[0])
    assert main([str(folder), str(file), "--weights", "int8"]) == 1
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [part["part"] for part in shown[0]["parts"]] == ["format"]

    file.write_text("")
    assert main([str(folder), str(file)]) == 1  # nothing was audited
    assert main([str(tmp_path / "missing"), str(file)]) == 2
