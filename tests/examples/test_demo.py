"""The parts of the demo that need no model: its prompts, its output, and the error if the stack does not start."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from examples.demo import read_options
from examples.progress import Bars, Lines, describe, make_view
from examples.prompts import PromptSets, prompt_sets, write_rows
from examples.report import report_table, summary
from examples.stack import Stack, StackError
from slipstream.types import Pipeline, Stage
from tests.sdk.api import pipeline_json, stage_json

REPORT = {
    "prompts_held_out": 32,
    "outputs_equal": 32,
    "acceptance_length": 2.125,
    "acceptance_length_suffix": 1.75,
    "acceptance_rate_per_position": [0.7, 0.4],
    "tokens_per_second_plain": 40.0,
    "tokens_per_second_suffix": 50.0,
    "tokens_per_second_speculative": 60.0,
    "speedup": 1.5,
    "speedup_suffix": 1.25,
    "speedup_over_suffix": 1.2,
    "model": "tiny",
    "drafter": "medusa",
    "device": "cpu",
    "dtype": "bfloat16",
    "concurrencies": [
        {
            "concurrency": 4,
            "tokens_per_second_plain": 90.0,
            "tokens_per_second_suffix": 81.0,
            "tokens_per_second_speculative": 99.0,
            "speedup": 1.1,
            "speedup_suffix": 0.9,
            "speedup_over_suffix": 1.2222,
        }
    ],
}


def test_held_out_questions_are_reproducible_and_not_in_the_training_set() -> None:
    few, many = prompt_sets(10, 8), prompt_sets(40, 8)

    assert few.held_out == many.held_out
    assert few.distill == many.distill[:10]
    assert len({*many.held_out, *many.distill}) == 40 + 8  # no question is in both sets


def test_prompt_sets_that_share_a_question_are_refused() -> None:
    with pytest.raises(ValueError, match="got 1 shared questions"):
        PromptSets(distill=["a", "b"], held_out=["b"])


def test_the_rows_have_the_format_of_openais_batch_input(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    write_rows(path, ["Why?"], prefix="held_out", model="tiny", max_tokens=9)

    (row,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (row["custom_id"], row["method"], row["url"]) == ("held_out-0000", "POST", "/v1/chat/completions")
    assert row["body"]["messages"][1] == {"role": "user", "content": "Question: Why?"}
    assert (row["body"]["model"], row["body"]["max_tokens"], row["body"]["temperature"]) == ("tiny", 9, 0)


def test_a_stages_metrics_fit_in_a_line() -> None:
    progress = {"done": 3, "total": 8, "unit": "steps"}
    stage = stage_json("train", "running", progress=progress, metrics={"loss": 1.234, "acceptance_length": 2.0})

    assert describe(Stage.from_json(stage)) == "    train: running 3/8 steps (loss 1.23, acceptance length 2.00)"


def test_without_a_terminal_a_line_is_printed_when_the_status_of_a_stage_changes() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100)
    view = make_view(console)
    assert isinstance(view, Lines)
    stages = [stage_json("distil", "running"), stage_json("train")]

    with view:
        view.show(Pipeline.from_json(pipeline_json(stages=stages)))
        view.show(Pipeline.from_json(pipeline_json(stages=stages)))
        view.show(Pipeline.from_json(pipeline_json(stages=[stage_json("distil", "succeeded"), stages[1]])))

    assert output.getvalue().splitlines() == ["    distil: running", "    distil: succeeded"]


def test_on_a_terminal_each_stage_has_a_bar() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=True)
    view = make_view(console)
    assert isinstance(view, Bars)

    with view:
        view.show(Pipeline.from_json(pipeline_json()))

    text = output.getvalue()
    assert all(name in text for name in ("distil", "train", "evaluate", "gate", "deploy"))


def test_the_demo_shows_and_summarizes_the_report() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100)

    console.print(report_table(REPORT))

    text = output.getvalue()
    assert all(figure in text for figure in ("90.0", "81.0 (0.90x)", "99.0 (1.10x)", "1.22x"))
    assert all(length in text for length in ("1.00", "1.75", "2.12"))
    assert (summary(REPORT)["speedup"], summary(REPORT)["speedup_over_suffix"]) == (1.5, 1.2)
    assert "concurrencies" not in summary(REPORT)


def test_the_error_for_a_stack_that_does_not_start_includes_the_reason(tmp_path: Path) -> None:
    """A real `manage.py up` with a model that does not exist."""
    stack = Stack(tmp_path / "data", models={"tiny": tmp_path / "nowhere"})

    with stack, pytest.raises(StackError, match="ended with code 1") as caught:
        stack.wait_until_ready()

    assert "--model tiny=" in str(caught.value)


def test_the_options_select_the_kind_and_the_hyperparameters_of_the_training() -> None:
    assert read_options([]).training["kind"] == "medusa"
    options = read_options(["--kind", "mtp", "--training", '{"steps": 2}'])
    assert options.training == {"kind": "mtp", "max_seconds": 150, "steps": 2}
