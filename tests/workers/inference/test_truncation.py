"""Answers that reach their rows' length limits: where the limit cut them, and how they continue. The engine is real."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.openai.thinking_model import BEGIN, END, make_thinking_model
from tests.workers.support import Recorder, chat_row, read_lines, write_lines
from workers.contracts import BatchSpec, ShardRange
from workers.inference.batch import run_batch

LIMIT, LONG = 7, 40  # token limits: of the rows, and of the long request with which continued answers are compared
OPENED = {"chat_template_kwargs": {"opened": True}, "logit_bias": {END: -100}}  # a trace that only a budget ends
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 5},
    {"temperature": 0.9},  # the seed is derived from the job and the row
    {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.2},
    {"temperature": 0.7, "min_tokens": 6, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0.9, "seed": 3, "stop": ["e", "a", "1"]},
    {"temperature": 0.9, "seed": 4, **OPENED},
]
GRAMMAR: dict[str, Any] = {"temperature": 0.9, "seed": 6, "structured_outputs": {"regex": "[a-f]{5,30}x"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_thinking_model(tmp_path_factory.mktemp("thinking"), max_position_embeddings=256)


def rows_with(limit: int, samplings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chat_row(f"row-{n}", f"Count to {n}.", max_tokens=limit, **body) for n, body in enumerate(samplings)]


def answers(folder: Path, model: Path, rows: Sequence[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    folder.mkdir()
    spec = BatchSpec(
        job_id="job_1",
        model_dir=str(model),
        model_name="tiny",
        input_path=str(write_lines(folder / "rows.jsonl", rows)),
        output_dir=str(folder / "output"),
        shards=(ShardRange(shard_no=0, row_from=0, row_to=len(rows)),),
        drafter="none",
        max_batch_size=3,
    )
    emit = Recorder()
    run_batch(replace(spec, **options), emit)
    (shard,) = emit.of("shard")
    return read_lines(Path(shard.path))


@pytest.mark.parametrize(
    ("drafter", "samplings"),
    [
        pytest.param("suffix", SAMPLINGS, id="suffix"),
        # The process that compiles grammars takes seconds to start.
        pytest.param("none", [*SAMPLINGS, GRAMMAR], id="none-with-a-grammar", marks=pytest.mark.wide),
    ],
)
def test_a_continued_answer_equals_the_answer_to_one_longer_request(
    tmp_path: Path, model: Path, drafter: str, samplings: Sequence[dict[str, Any]]
) -> None:
    cut = answers(tmp_path / "cut", model, rows_with(LIMIT, samplings))
    whole = answers(tmp_path / "whole", model, rows_with(LONG, samplings))

    continued = answers(
        tmp_path / "continued",
        model,
        rows_with(LIMIT, samplings),
        drafter=drafter,
        continue_cut_answers=True,
        max_continued_tokens=LONG,
    )

    assert [line["ok"] for line in continued] == [True] * len(samplings)
    for name in ("completion_token_ids", "finish_reason", "prompt_token_ids"):
        assert [line[name] for line in continued] == [line[name] for line in whole]
    choices = [[line["output"]["response"]["body"]["choices"] for line in lines] for lines in (continued, whole)]
    assert choices[0] == choices[1]  # with texts and log-probabilities
    for short, line in zip(cut, continued, strict=True):
        assert line["completion_token_ids"][: len(short["completion_token_ids"])] == short["completion_token_ids"]
        is_cut = short["finish_reason"] == "length"
        assert (line["cut"] is not None, short["cut"] is not None) == (is_cut, is_cut)
        assert not is_cut or (line["cut"]["continued"], short["cut"]["continued"]) == (True, False)
    assert sum(line["cut"] is not None for line in continued) >= 5


def test_a_cut_answer_records_whether_the_limit_fell_into_the_reasoning_trace_or_the_answer(
    tmp_path: Path, model: Path
) -> None:
    budgets: dict[str, dict[str, Any]] = {  # 8 tokens, after a prompt that has opened the trace
        "of the trace": {},
        "3 of the trace, the marker, 4 of the answer": {"thinking_token_budget": 3},
        "6 of the trace, the marker, 1 of the answer": {"thinking_token_budget": 6},
    }
    rows = [chat_row(name, "hi", max_tokens=8, **OPENED, **body) for name, body in budgets.items()]
    rows.append(chat_row("8 of the answer, without a trace", "hi", max_tokens=8, logit_bias={BEGIN: -100}))
    rows.append(chat_row("stopped at the limit", "hi", max_tokens=8, stop_token_ids=list(range(END + 1))))

    lines = answers(tmp_path / "cut", model, rows)

    withins = [None if line["cut"] is None else line["cut"]["within"] for line in lines]
    assert withins == ["trace", "answer", "answer", "answer", None]
    assert lines[1]["completion_token_ids"].index(END) == 3


def test_an_answer_continues_at_most_to_max_continued_tokens_or_the_end_of_the_context(
    tmp_path: Path, model: Path
) -> None:
    endless = {"logit_bias": dict.fromkeys((0, 1, 2, 256, 257, 258), -100), "ignore_eos": True}
    rows = [chat_row("a", "hi", max_tokens=3, **endless), chat_row("b", "hi", max_tokens=12, **endless)]

    stated = answers(tmp_path / "stated", model, rows, continue_cut_answers=True, max_continued_tokens=5)
    context = answers(tmp_path / "context", model, rows[:1], continue_cut_answers=True)

    assert [len(line["completion_token_ids"]) for line in stated] == [5, 12]  # a row's own limit is never lowered
    assert [line["cut"] for line in stated] == [
        {"within": "answer", "continued": True}, {"within": "answer", "continued": False}
    ]  # fmt: skip
    (line,) = context
    assert len(line["prompt_token_ids"]) + len(line["completion_token_ids"]) == 256
    assert [line["finish_reason"] for line in (*stated, *context)] == ["length"] * 3
