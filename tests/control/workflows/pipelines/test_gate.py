"""A gate judges an evaluation's report by its speedup, its acceptance length and the equality of answers."""

from typing import Any

import pytest

from control.workflows.pipelines.gate import gate_objections
from control.workflows.pipelines.schemas import Gate
from control.workflows.pipelines.services import _stored_gate


def report(**values: Any) -> dict[str, Any]:
    """The report of a speculator that is fast at concurrency 1 and slow at concurrency 16."""
    points = [
        {"concurrency": 1, "speedup": 2.0, "speedup_over_suffix": 1.2, "acceptance_length": 3.0},
        {"concurrency": 16, "speedup": 0.9, "speedup_over_suffix": 1.6, "acceptance_length": 2.0},
    ]
    return {
        "prompts_held_out": 10,
        "outputs_equal": 10,
        "outputs_equal_to_model": 10,
        "speedup": 2.0,
        "acceptance_length": 3.0,
        "concurrencies": points,
        **values,
    }


@pytest.mark.parametrize(
    ("gate", "num_objections"),
    [
        ({"concurrency": 1, "min_speedup": 1.5}, 0),
        ({"concurrency": 16, "min_speedup": 1.5}, 1),
        ({"concurrency": 1, "min_speedup": 1.5, "min_acceptance_length": 2.5}, 0),
        ({"concurrency": 16, "min_speedup": 0.5, "min_acceptance_length": 2.5}, 1),
        ({"min_speedup": 1.5}, 1),  # at every evaluated concurrency
        ({"min_speedup": 0.5}, 0),
        ({"concurrency": 1, "min_speedup": 1.5, "baseline": "suffix"}, 1),
        ({"concurrency": 16, "min_speedup": 1.5, "baseline": "suffix"}, 0),
        ({"concurrency": 4, "min_speedup": 0.5}, 1),  # this concurrency was not evaluated
    ],
)
def test_the_speedup_is_judged_at_the_concurrency_that_the_gate_names(
    gate: dict[str, Any], num_objections: int
) -> None:
    assert len(gate_objections(Gate(**gate), report())) == num_objections


@pytest.mark.parametrize(
    ("outputs_equal", "passes"), [(True, False), ("model", False), ("model_and_adapter", True), (False, True)]
)
def test_a_gate_can_require_answers_equal_to_those_of_the_model_or_of_the_model_with_its_adapter(
    outputs_equal: Any, passes: bool
) -> None:
    gate = Gate(min_speedup=0, outputs_equal=outputs_equal)

    assert (gate_objections(gate, report(outputs_equal_to_model=3)) == []) == passes
    assert gate_objections(gate, report()) == []


@pytest.mark.parametrize(("outputs_equal", "passes"), [(True, False), ("model_and_adapter", False), (False, True)])
def test_answers_that_differ_with_and_without_speculation_pass_only_a_gate_that_asks_for_no_equality(
    outputs_equal: Any, passes: bool
) -> None:
    gate = Gate(min_speedup=0, outputs_equal=outputs_equal)

    assert (gate_objections(gate, report(outputs_equal=9, outputs_equal_to_model=9)) == []) == passes


def test_the_report_of_an_older_version_is_judged_by_its_overall_figures() -> None:
    old = {"prompts_held_out": 2, "outputs_equal": 2, "speedup": 1.5, "acceptance_length": 2.0}

    assert gate_objections(Gate(min_speedup=1.2), old) == []
    assert len(gate_objections(Gate(min_speedup=1.6), old)) == 1
    (objection,) = gate_objections(Gate(baseline="suffix"), old)
    assert objection == "the report of an older version has no speedup_over_suffix"


def priced(**values: Any) -> dict[str, Any]:
    """The report of a speculator that pays for itself after 40,000 tokens at concurrency 1, and never at 16."""
    both = {"speedup": 1.0, "speedup_over_suffix": 1.0, "acceptance_length": 2.0}
    fast = {"concurrency": 1, "break_even_tokens": 40_000, "tokens_per_second_plain": 50.0}
    slow = {"concurrency": 16, "break_even_tokens": None, "tokens_per_second_plain": 400.0}
    points = [
        {**both, **fast, "tokens_per_second_speculative": 100.0},
        {**both, **slow, "tokens_per_second_speculative": 390.5},
    ]
    return report(concurrencies=points, training_seconds=400.0, **values)


@pytest.mark.parametrize(
    ("gate", "objections"),
    [
        ({"concurrency": 1, "max_break_even_tokens": 40_000}, []),
        (
            {"concurrency": 1, "max_break_even_tokens": 39_999},
            ["break_even_tokens must be at most 39,999 at concurrency 1, got 40,000"],
        ),
        (
            {"max_break_even_tokens": 50_000},
            [
                "break_even_tokens must be at most 50,000 at concurrency 16, got none: 390.5 tokens per second with "
                "the speculator, 400 without it"
            ],
        ),
        ({}, []),
    ],
)
def test_a_gate_can_require_that_the_speculator_pays_for_itself_within_a_number_of_tokens(
    gate: dict[str, Any], objections: list[str]
) -> None:
    assert gate_objections(Gate(**gate), priced()) == objections


def test_a_speculator_whose_training_time_is_unknown_does_not_pass_a_gate_on_the_break_even_point() -> None:
    (objection,) = gate_objections(Gate(concurrency=1, max_break_even_tokens=10**9), report())

    assert objection.endswith("got none: the time of the training is not known")


def test_only_a_gate_that_has_a_break_even_point_stores_it() -> None:
    stored = [_stored_gate(Gate()), _stored_gate(Gate(max_break_even_tokens=5))]

    assert ["max_break_even_tokens" in gate for gate in stored] == [False, True], (
        "the previous release knows no such key"
    )
    assert [Gate.model_validate(gate).max_break_even_tokens for gate in stored] == [None, 5]
