"""The examples of an evaluation mark exactly the tokens that were accepted from the drafter."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.load import load_engine
from engine.request import SpeculationStats, StepOutput
from engine.tokenizer import Tokenizer
from tests.workers.inference.test_evaluation import interrupted, make_spec, prepared
from tests.workers.support import Recorder, chat_rows
from workers.inference.driver import answer_rows
from workers.inference.evaluation import run_evaluation
from workers.inference.examples import MAX_CHARACTERS, MAX_TOKENS, examples_of
from workers.inference.rows import RowAnswer


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model)


def answer_of(tokenizer: Tokenizer, *passes: str, number: int = 0, accepted: int = 0) -> RowAnswer:
    """Returns an answer with one pass for each text; the pass gave the tokens of this text."""
    answer = RowAnswer(prepared(number, f"prompt {number}", tokenizer), tokenizer)
    for text in passes:
        answer.push(StepOutput("0", tuple(tokenizer.encode(text, add_special_tokens=False)), None, None, None))
    answer.speculation = SpeculationStats(num_spec_steps=10, num_accepted_draft_tokens=accepted)
    return answer


def test_all_tokens_of_a_pass_but_the_last_are_marked_as_accepted(tokenizer: Tokenizer) -> None:
    last = tokenizer.encode("é!", add_special_tokens=False)
    (example,) = examples_of([answer_of(tokenizer, "a", "bcd", "é!")], tokenizer)

    assert [(part["text"], part["accepted"]) for part in example["parts"]][:4] == [
        ("a", False), ("bc", True), ("d", False), *([("é", True)] if len(last) > 1 else []),
    ]  # fmt: skip
    assert "".join(part["text"] for part in example["parts"]) == "abcdé!"
    assert (example["custom_id"], example["prompt"], example["is_cut"]) == ("row-0", "prompt 0", False)


def test_the_marked_tokens_are_those_that_the_engine_counts_as_accepted(tiny_model: Path, tokenizer: Tokenizer) -> None:
    engine = load_engine(tiny_model, drafter="ngram", config=EngineConfig(draft_budget=8))
    rows = [prepared(number, "a b a b a b", tokenizer, max_tokens=64) for number in range(3)]
    answers = [each for each in answer_rows(engine, rows, tokenizer=tokenizer, concurrency=3) if each is not None]

    for answer in answers:
        assert isinstance(answer, RowAnswer)
        assert sum(answer.accepted) == answer.speculation.num_accepted_draft_tokens > 0
        assert len(answer.accepted) == len(answer.token_ids)


def test_the_lowest_the_middle_and_the_highest_acceptance_are_shown_once_each(tokenizer: Tokenizer) -> None:
    answers = [answer_of(tokenizer, "a", number=number, accepted=number) for number in (3, 0, 4, 1, 2)]
    shown = examples_of([*answers, answer_of(tokenizer, "b", number=4, accepted=30)], tokenizer)  # a second repeat

    assert [example["custom_id"] for example in shown] == ["row-0", "row-2", "row-4"]
    assert len(examples_of(answers[:1], tokenizer)) == 1
    assert examples_of([], tokenizer) == []


def test_the_size_of_an_example_is_bounded(tokenizer: Tokenizer) -> None:
    answer = answer_of(tokenizer, *["long"] * 3 * MAX_TOKENS)
    answer.request = replace(answer.request, row=replace(answer.request.row, body={"prompt": "x" * 10_000}))

    (example,) = examples_of([answer], tokenizer)

    text = "".join(part["text"] for part in example["parts"])
    assert example["is_cut"]
    assert len(tokenizer.encode(text, add_special_tokens=False)) <= MAX_TOKENS
    assert len(example["prompt"]) == MAX_CHARACTERS


def test_a_resumed_evaluation_has_the_examples_of_an_undisturbed_one(tmp_path: Path, tiny_model: Path) -> None:
    spec = replace(make_spec(tmp_path, tiny_model, chat_rows(4)), draft_budget=8)
    spec = interrupted(spec, tmp_path / "staged")

    resumed = run_evaluation(spec, Recorder()).artifacts["examples"]
    found = json.loads(Path(resumed).read_text())
    whole = replace(spec, checkpoint_dir=str(tmp_path / "none"), output_dir=str(tmp_path / "whole"))
    undisturbed = json.loads(Path(run_evaluation(whole, Recorder()).artifacts["examples"]).read_text())

    assert found == undisturbed
    assert len(found) == 3
