"""Answers that were made elsewhere are rendered with the model's template and tokenized, and speculators learn them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.tokenizer import Tokenizer
from tests.tiny_model import make_tiny_model
from tests.workers.training.jobs import training_spec
from tests.workers.training.test_kinds import KINDS, report_of
from workers.failures import InvalidInputError
from workers.training.answers import tokenize_answers, with_tokens
from workers.training.job import run_training

QUESTION = {"messages": [{"role": "user", "content": "how?"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def chat(content: str, reason: str = "stop", **body: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    answer = {"message": message, "finish_reason": reason}
    return {"custom_id": "a", "url": "/v1/chat/completions", "body": {**QUESTION, **body}, "answer": answer}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows))
    return path


def tokenized(rows: list[dict[str, Any]], folder: Path, tokenizer: Tokenizer, **values: Any) -> list[dict[str, Any]]:
    tokens = folder / "tokens.jsonl"
    tokenize_answers(
        write(folder / "answers.jsonl", rows), tokens, tokenizer=tokenizer, **{"max_tokens": None, **values}
    )
    return [json.loads(line) for line in tokens.read_text().splitlines()]


def test_prompt_and_answer_have_the_tokens_that_the_model_would_read_and_write(model: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(model)
    whole, cut = tokenized([chat("like this"), chat("like this", "length")], tmp_path, tokenizer)
    assert whole["prompt_token_ids"] == tokenizer.encode_chat(QUESTION["messages"])
    answer = tokenizer.encode("like this", add_special_tokens=False)
    assert whole["completion_token_ids"][:-1] == answer
    assert whole["completion_token_ids"][-1] in tokenizer.eos_token_ids  # the line break after it is not the answer's
    assert cut["completion_token_ids"] == answer  # its end is not learned
    assert (whole["finish_reason"], cut["finish_reason"], whole["custom_id"]) == ("stop", "length", "a")


def test_a_completion_is_tokenized_without_the_template(model: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(model)
    row = {"custom_id": "a", "body": {"prompt": "once"}, "answer": {"text": " upon", "finish_reason": "stop"}}
    (made,) = tokenized([row], tmp_path, tokenizer)
    assert made["prompt_token_ids"] == tokenizer.encode("once")
    assert made["completion_token_ids"] == tokenizer.encode(" upon", add_special_tokens=False)


def test_a_template_that_renders_the_prompt_differently_before_an_answer_has_its_own_error(
    model: Path, tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path / "model")
    template = (folder / "chat_template.jinja").read_text()
    changed = template.replace("assistant\n{% endif %}", "assistant\n<think>{% endif %}")
    assert changed != template
    (folder / "chat_template.jinja").write_text(changed)
    with pytest.raises(InvalidInputError, match=r"line 2: .*chat template.*'<think>'") as refusal:
        tokenized([chat("like this")], tmp_path, Tokenizer.load(folder))
    assert refusal.value.code == "answer_template_mismatch"
    (made,) = tokenized([chat("<think>so</think> this")], tmp_path, Tokenizer.load(folder))  # an answer with the trace
    assert made["completion_token_ids"]


def test_rows_that_do_not_fit_the_context_or_that_the_template_refuses_are_named(model: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(model)
    with pytest.raises(InvalidInputError, match=r"line 3: .* the context has 64") as too_long:
        tokenized([chat("short"), chat("long " * 50)], tmp_path, tokenizer, max_tokens=64)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(InvalidInputError, match="line 2") as bad:
        tokenized([chat("a", messages=[{"role": "user", "content": [{"type": "image_url"}]}])], tmp_path, tokenizer)
    assert bad.value.code != "unexpected_error"
    with pytest.raises(InvalidInputError, match="line 2: need custom_id") as missing:
        tokenized([{"custom_id": "a", "body": QUESTION}], tmp_path, tokenizer)
    assert missing.value.code == "invalid_training_row"


def test_a_speculator_learns_the_given_answers(model: Path, tmp_path: Path) -> None:
    rows = [{**chat(f"The answer is {number % 4}, as always."), "custom_id": f"row-{number}"} for number in range(32)]
    answers = write(tmp_path / "answers.jsonl", rows)
    hyperparameters = {**KINDS["medusa"], "soft_target_weight": 0.0}
    spec = replace(
        training_spec(tmp_path, model, tmp_path / "none", "medusa", hyperparameters),
        tokens_paths=(),
        answers_path=str(answers),
    )
    report = report_of(run_training(with_tokens(spec), lambda event: None))
    assert report["conversations_train"] + report["conversations_validation"] == 32
    assert report["acceptance_length"] > report["history"][0]["acceptance_length"] + 0.2
