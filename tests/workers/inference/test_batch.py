"""Batch inference over shards, with the real engine on a tiny model."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.grammars.compiler import GrammarCompiler
from engine.load import load_engine
from engine.request import FinishReason, Request, SpeculationStats, StepOutput
from engine.tokenizer import Tokenizer
from tests.workers.support import Recorder, chat_row, chat_rows, model_with_another_end_token, read_lines, write_lines
from workers.contracts import BatchSpec, ShardRange
from workers.failures import InvalidInputError, UserConfigError
from workers.inference.batch import answer_shards, run_batch
from workers.inference.rows import InputRow, RowRequest, prepare_row


def make_spec(folder: Path, model: Path, rows: Sequence[dict[str, Any]], *shards: tuple[int, int]) -> BatchSpec:
    return BatchSpec(
        job_id="job_0123",
        model_dir=str(model),
        model_name="tiny",
        input_path=str(write_lines(folder / "rows.jsonl", rows)),
        output_dir=str(folder / "output"),
        shards=tuple(
            ShardRange(shard_no=number, row_from=start, row_to=end)
            for number, (start, end) in enumerate(shards or [(0, len(rows))])
        ),
        drafter="none",
        max_batch_size=4,
    )


def run(spec: BatchSpec) -> tuple[list[dict[str, Any]], Recorder]:
    """Returns the lines of all shard files, in the order of the shards, and the recorded events."""
    emit = Recorder()
    run_batch(spec, emit)
    shards = sorted(emit.of("shard"), key=lambda event: event.shard_no)
    return [line for shard in shards for line in read_lines(Path(shard.path))], emit


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for line in lines:
        line["output"]["response"]["body"].pop("created", None)
        line["output"]["response"]["body"].pop("metrics", None)  # timings differ
    return lines


def test_each_shard_file_has_the_answers_to_its_rows_in_order(tmp_path: Path, tiny_model: Path) -> None:
    lines, emit = run(make_spec(tmp_path, tiny_model, chat_rows(7), (0, 3), (3, 7)))
    assert [line["row"] for line in lines] == list(range(7))
    assert [line["custom_id"] for line in lines] == [f"row-{i}" for i in range(7)]
    assert [(event.completed, event.failed) for event in emit.of("shard")] == [(3, 0), (4, 0)]


def test_only_the_rows_of_the_given_shards_are_answered(tmp_path: Path, tiny_model: Path) -> None:
    lines, _ = run(make_spec(tmp_path, tiny_model, chat_rows(9), (2, 4), (7, 8)))
    assert [line["row"] for line in lines] == [2, 3, 7]


def test_an_output_row_has_the_fields_of_openais_batch_output(tmp_path: Path, tiny_model: Path) -> None:
    (line,), _ = run(make_spec(tmp_path, tiny_model, chat_rows(1)))
    output = line["output"]
    assert output.keys() == {"id", "custom_id", "response", "error", "attempts"}
    assert (output["id"], output["error"], output["attempts"]) == ("batch_req_0123_0", None, 1)
    assert (output["response"]["status_code"], output["response"]["request_id"]) == (200, "req_0123_0")
    assert output["response"]["body"]["system_fingerprint"] == str(load_engine(tiny_model).fingerprint())
    body = output["response"]["body"]
    assert (body["object"], body["model"], len(body["choices"])) == ("chat.completion", "tiny", 1)
    assert body["usage"]["completion_tokens"] == len(line["completion_token_ids"]) == 24
    assert body["usage"]["prompt_tokens"] == len(line["prompt_token_ids"])
    assert line["finish_reason"] == body["choices"][0]["finish_reason"] == "length"


def test_a_cut_answer_that_is_answered_again_with_its_seed_begins_with_the_same_tokens(
    tmp_path: Path, tiny_model: Path
) -> None:
    row = chat_row("row-0", "hi", temperature=1, max_tokens=6)
    (cut,), _ = run(make_spec(tmp_path, tiny_model, [row]))
    seed = cut["output"]["response"]["body"]["seed"]
    longer = {**row, "body": {**row["body"], "max_tokens": 20, "seed": seed}, "earlier_attempts": 1}

    (line,), _ = run(replace(make_spec(tmp_path, tiny_model, [longer]), job_id="job_other"))

    assert cut["finish_reason"] == "length"
    assert len(line["completion_token_ids"]) > 6
    assert line["completion_token_ids"][:6] == cut["completion_token_ids"]
    assert (line["output"]["response"]["body"]["seed"], line["output"]["attempts"]) == (seed, 2)


def test_a_row_may_have_a_prediction(tmp_path: Path, tiny_model: Path) -> None:
    rows = [chat_row("plain", "hi", seed=1, temperature=0)]
    rows.append(chat_row("predicted", "hi", seed=1, temperature=0, prediction={"type": "content", "content": "hi"}))

    tokenizer = Tokenizer.load(tiny_model)
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_token_ids, trial_seconds=None)

    (plain, predicted), _ = run(make_spec(tmp_path, tiny_model, rows))
    prepared = prepare_row(
        InputRow(number=0, custom_id="predicted", url=rows[1]["url"], body=rows[1]["body"]),
        tokenizer=tokenizer,
        grammars=compiler,
        max_seq_len=256,
        seed_key="job",
    )

    assert isinstance(prepared, RowRequest)
    assert prepared.request.prediction_token_ids == tuple(tokenizer.encode("hi", add_special_tokens=False))
    assert predicted["completion_token_ids"] == plain["completion_token_ids"]
    details = predicted["output"]["response"]["body"]["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == 2


def test_the_completion_token_ids_decode_to_the_text_of_the_answer(tmp_path: Path, tiny_model: Path) -> None:
    (line,), _ = run(make_spec(tmp_path, tiny_model, chat_rows(1)))
    text = Tokenizer.load(tiny_model).decode(line["completion_token_ids"])
    assert line["output"]["response"]["body"]["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    ("row", "param"),
    [
        (chat_row("bad", "x", temperature=9), "temperature"),
        (chat_row("bad", "x", messages=[]), "messages"),
        (chat_row("bad", "x", stream=True), "stream"),
        (chat_row("bad", "x", n=2), "n"),
        (chat_row("bad", "x") | {"url": "/v1/embeddings"}, "url"),
        (chat_row("bad", "x" * 5000), "messages"),
    ],
)
def test_a_row_that_cannot_be_answered_is_an_error_row_and_other_rows_are_answered(
    tmp_path: Path, tiny_model: Path, row: dict[str, Any], param: str
) -> None:
    lines, emit = run(make_spec(tmp_path, tiny_model, [*chat_rows(2), row]))
    assert [line["ok"] for line in lines] == [True, True, False]
    response = lines[2]["output"]["response"]
    assert response["status_code"] == 400
    assert response["body"]["error"]["param"] == param
    assert "completion_token_ids" not in lines[2]
    (shard,) = emit.of("shard")
    assert (shard.completed, shard.failed) == (2, 1)


def test_a_row_whose_max_tokens_exceeds_the_context_is_an_error_row(tmp_path: Path, tiny_model: Path) -> None:
    rows = [chat_row(f"row-{n}", "hi", max_tokens=limit) for n, limit in enumerate((100_000, None, 2))]

    lines, _ = run(make_spec(tmp_path, tiny_model, rows))

    bodies = [line["output"]["response"]["body"] for line in lines]
    assert [line["ok"] for line in lines] == [False, True, True]
    assert bodies[0]["error"]["code"] == "max_tokens_too_large"
    assert bodies[1]["limits"]["set_by"] == "context"
    assert "limits" not in bodies[2]


def test_the_usage_of_a_shard_is_the_sum_over_its_rows(tmp_path: Path, tiny_model: Path) -> None:
    lines, emit = run(make_spec(tmp_path, tiny_model, chat_rows(3)))
    usages = [line["output"]["response"]["body"]["usage"] for line in lines]
    (shard,) = emit.of("shard")
    assert shard.usage == {name: sum(usage[name] for usage in usages) for name in shard.usage}
    assert set(shard.usage) == {"prompt_tokens", "completion_tokens", "total_tokens"}


def test_a_second_attempt_gives_the_same_sampled_answers_although_rows_have_no_seed(
    tmp_path: Path, tiny_model: Path
) -> None:
    spec = make_spec(tmp_path, tiny_model, chat_rows(4, temperature=1.0))
    first, _ = run(spec)
    again, _ = run(replace(spec, output_dir=str(tmp_path / "again"), max_batch_size=1))
    assert without_times(again) == without_times(first)


def test_speculation_does_not_change_any_row(tmp_path: Path, tiny_model: Path) -> None:
    spec = make_spec(tmp_path, tiny_model, chat_rows(4, temperature=0.8))
    plain, _ = run(spec)
    drafted, _ = run(replace(spec, drafter="ngram", output_dir=str(tmp_path / "ngram")))
    assert without_times(drafted) == without_times(plain)


def test_a_stop_string_ends_the_text_and_the_token_ids_of_an_answer(tmp_path: Path, tiny_model: Path) -> None:
    (whole,), _ = run(make_spec(tmp_path, tiny_model, chat_rows(1)))
    text = whole["output"]["response"]["body"]["choices"][0]["message"]["content"]
    stop = next(c for c in text[5:] if c.isascii() and c.isprintable())
    (cut,), _ = run(make_spec(tmp_path, tiny_model, chat_rows(1, stop=[stop])))
    choice = cut["output"]["response"]["body"]["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text.split(stop)[0], "stop")
    num_tokens = len(cut["completion_token_ids"])
    assert cut["completion_token_ids"] == whole["completion_token_ids"][:num_tokens]
    assert num_tokens < 24


def test_the_output_folder_contains_only_shard_files_at_the_end(tmp_path: Path, tiny_model: Path) -> None:
    spec = make_spec(tmp_path, tiny_model, chat_rows(3))
    run(spec)
    assert [path.name for path in Path(spec.output_dir).iterdir()] == ["shard-000000.jsonl"]


def test_an_unknown_drafter_is_a_user_config_error(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(UserConfigError) as raised:
        run_batch(replace(make_spec(tmp_path, tiny_model, chat_rows(1)), drafter="oracle"), Recorder())
    assert raised.value.code == "speculator_not_loadable"


def test_a_file_with_fewer_rows_than_the_shards_need_is_invalid_input(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(InvalidInputError, match="should have 5 rows or more, has 2"):
        run(make_spec(tmp_path, tiny_model, chat_rows(2), (0, 5)))


class SlowFirstRow:
    """An engine that needs six steps for row 0 and one step for each other row."""

    eos_token_ids = frozenset({2})

    def __init__(self) -> None:
        self._steps_left: dict[str, int] = {}  # by request id
        self.batch_sizes: list[int] = []  # number of requests in each step

    def add(self, request: Request) -> None:
        self._steps_left[request.request_id] = 6 if request.request_id == "0" else 1

    def cancel(self, request_id: str) -> None:
        raise AssertionError("nothing is cancelled here")

    def step(self) -> list[StepOutput]:
        self.batch_sizes.append(len(self._steps_left))
        self._steps_left = {key: steps - 1 for key, steps in self._steps_left.items()}
        ended = [key for key, steps in self._steps_left.items() if steps == 0]
        for key in ended:
            del self._steps_left[key]
        return [StepOutput(key, (70,), None, FinishReason.LENGTH, SpeculationStats()) for key in ended]


def test_rows_of_later_shards_fill_the_batch_while_a_slow_row_runs(tmp_path: Path, tiny_model: Path) -> None:
    spec = make_spec(tmp_path, tiny_model, chat_rows(24), (0, 8), (8, 16), (16, 24))
    engine, emit = SlowFirstRow(), Recorder()
    tokenizer = Tokenizer.load(tiny_model)
    answer_shards(spec, emit, engine=engine, tokenizer=tokenizer, max_seq_len=1024, max_rows=4, clock=lambda: 0.0)
    assert engine.batch_sizes[:6] == [4] * 6  # max_batch_size is 4
    assert [event.shard_no for event in emit.of("shard")] == [1, 0, 2]  # the slow row delays only its own shard


def test_a_row_with_non_finite_logits_gets_an_error_and_other_rows_get_answers(
    tmp_path: Path, tiny_model: Path
) -> None:
    tokenizer, engine = Tokenizer.load(tiny_model), load_engine(tiny_model)
    (damaged,) = tokenizer.encode("#")
    with torch.inference_mode():
        engine.model.weights.embedding[damaged] = math.nan
    spec, emit = make_spec(tmp_path, tiny_model, [*chat_rows(2, max_tokens=1), chat_row("bad", "a # b")]), Recorder()

    answer_shards(spec, emit, engine=engine, tokenizer=tokenizer, max_seq_len=engine.max_seq_len, max_rows=4)

    (shard,) = emit.of("shard")
    lines = read_lines(Path(shard.path))
    assert [line["ok"] for line in lines] == [True, True, False]
    response = lines[2]["output"]["response"]
    assert (response["status_code"], response["body"]["error"]["code"]) == (500, "non_finite_logits")


def test_a_grammar_ends_with_the_end_token_of_the_engine_if_the_tokenizer_names_another_one(
    tmp_path: Path, tiny_model: Path
) -> None:
    folder = model_with_another_end_token(tiny_model, tmp_path / "model")
    tokenizer, engine = Tokenizer.load(folder), load_engine(folder)
    (other_end,) = tokenizer.eos_token_ids - engine.eos_token_ids
    bias = {"logit_bias": {str(other_end): 100}}  # makes the other token likelier wherever the grammar allows it
    row = chat_row("row", "hello", structured_outputs={"regex": "ab"}, **bias)

    (line,), _ = run(make_spec(tmp_path, folder, [row]))

    assert line["finish_reason"] == "stop"
    assert line["completion_token_ids"] == [*tokenizer.encode("ab"), *engine.eos_token_ids]


def test_if_the_chat_template_takes_too_much_memory_for_a_row_only_this_row_fails(
    tmp_path: Path, tiny_model: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    source = "{{ 'x' * 10 ** 10 if 'bomb' in messages[0].content else messages[0].content }}"
    (folder / "chat_template.jinja").write_text(source)

    lines, _ = run(make_spec(tmp_path, folder, [chat_row("a", "one"), chat_row("b", "bomb"), chat_row("c", "two")]))

    assert [line["ok"] for line in lines] == [True, False, True]
    error = lines[1]["output"]["response"]["body"]["error"]
    assert error["message"] == "the model's chat template takes too much memory"
