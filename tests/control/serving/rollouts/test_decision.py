"""The decision about a rollout follows from its gates, and false decisions are as rare as `alpha` says."""

import random
from collections.abc import Callable
from typing import Any, Literal

import pytest

from control.serving.rollouts.decision import Count, Decision, Evidence, Gate, Terms, decide, decide_at_end, gates_of
from control.serving.rollouts.sequential import Sums

TERMS = Terms(min_requests=20, max_acceptance_drop=0.05, max_error_rate=0.01)
LATENCY = Terms(
    min_requests=20, max_acceptance_drop=1.0, max_error_rate=1.0, first_token_seconds=0.5, inter_token_seconds=0.05
)
NUM_STREAMS = 200
# The gates are checked after these numbers of requests.
CHECKS = [*range(5, 100, 5), *range(100, 1000, 50), *range(1000, 3001, 200)]


def evidence(
    num_requests: int = 1000, *, length: float = 2.0, num_failed: int = 0, num_equal: int = 0, num_different: int = 0
) -> Evidence:
    """Returns evidence of requests that all have the same acceptance length."""
    passes = Sums()
    for _ in range(num_requests):
        passes = passes.plus([1.0 / length])
    return Evidence(
        num_requests=num_requests,
        num_failed=num_failed,
        passes=passes,
        num_equal=num_equal,
        num_different=num_different,
    )


def decision_of(candidate: Evidence, stable: Evidence, terms: Terms = TERMS, **options: bool) -> Decision:
    return decide(candidate, gates_of(candidate, stable, terms, **options), terms)


@pytest.mark.parametrize(
    ("candidate", "stable", "expected"),
    [
        (evidence(length=2.2), evidence(), "accepted"),
        (evidence(length=1.7), evidence(), "acceptance_dropped"),
        (evidence(num_requests=19, length=60.0), evidence(), "undecided"),
        (evidence(num_requests=60), evidence(num_requests=60), "undecided"),
        (evidence(length=1.0), evidence(length=1.0), "accepted"),
        (evidence(num_requests=0, num_failed=2), evidence(num_requests=0), "too_many_errors"),
        (evidence(num_requests=0, num_failed=20), evidence(), "too_many_errors"),
        (evidence(length=2.2, num_failed=100), evidence(num_failed=100), "accepted"),
        (Evidence(), Evidence(), "undecided"),
    ],
)
def test_a_promotion_needs_a_proven_acceptance_length_but_no_proven_error_rate(
    candidate: Evidence, stable: Evidence, expected: str
) -> None:
    assert decision_of(candidate, stable).code == expected


@pytest.mark.parametrize("gate", ["first_token", "inter_token"])
@pytest.mark.parametrize(("num_slow", "expected"), [(0, "accepted"), (100, "accepted"), (300, "slow")])
def test_more_slow_requests_roll_back(gate: str, num_slow: int, expected: str) -> None:
    def timed(num: int) -> Evidence:
        return Evidence(
            num_requests=1000,
            slow_first=Count(num=1000, num_true=num if gate == "first_token" else 0),
            slow_inter=Count(num=1000, num_true=num if gate == "inter_token" else 0),
        )

    found = decision_of(timed(num_slow), timed(100), LATENCY)

    assert found.code == (f"slow_{gate}" if expected == "slow" else expected)


@pytest.mark.parametrize(
    ("num_equal", "num_different", "expected"),
    [(19, 0, "undecided"), (20, 0, "accepted"), (10_000, 1, "answers_differ"), (0, 1, "answers_differ")],
)
def test_any_different_answer_rolls_back(num_equal: int, num_different: int, expected: str) -> None:
    candidate = evidence(length=3.0, num_equal=num_equal, num_different=num_different)

    assert decision_of(candidate, evidence(), compares_answers=True).code == expected
    assert decision_of(candidate, evidence()).code == "accepted"


@pytest.mark.parametrize(
    ("on_undecided", "num_requests", "num_equal", "expected"),
    [
        ("promote", 60, 60, "promote"),
        ("promote", 60, 10, "roll_back"),  # a promotion needs equal answers, whatever the rule
        ("promote", 10, 60, "roll_back"),
        ("roll_back", 60, 60, "roll_back"),
    ],
)
def test_the_end_of_an_undecided_rollout_follows_its_rule(
    on_undecided: Literal["promote", "roll_back"], num_requests: int, num_equal: int, expected: str
) -> None:
    terms = Terms(min_requests=20, max_acceptance_drop=0.05, max_error_rate=0.01, on_undecided=on_undecided)
    candidate = evidence(num_requests, num_equal=num_equal)
    gates = gates_of(candidate, evidence(60), terms, compares_answers=True)

    assert decide(candidate, gates, terms).kind == "undecided"
    assert decide_at_end(candidate, gates, terms, "60 seconds").kind == expected


class Stream:
    """Random requests to one process."""

    def __init__(self, seed: str, *, passes: tuple[float, float], error_rate: float, slow: float) -> None:
        self.random, self.passes, self.error_rate, self.slow = random.Random(seed), passes, error_rate, slow
        self.evidence = Evidence()

    def extend_to(self, num: int) -> Evidence:
        old = self.evidence
        more = num - old.num_requests - old.num_failed
        num_failed = sum(self.random.random() < self.error_rate for _ in range(more))
        num_slow = sum(self.random.random() < self.slow for _ in range(more))
        self.evidence = Evidence(
            num_requests=old.num_requests + more - num_failed,
            num_failed=old.num_failed + num_failed,
            passes=old.passes.plus([self.random.choice(self.passes) for _ in range(more - num_failed)]),
            slow_first=Count(num=old.slow_first.num + more, num_true=old.slow_first.num_true + num_slow),
        )
        return self.evidence


def ever(seed: int, terms: Terms, candidate: Stream, stable: Stream, is_found: Callable[[Gate], bool]) -> bool:
    """Returns whether `is_found` is true of any gate at any of the checks."""
    return any(any(map(is_found, gates_of(candidate.extend_to(n), stable.extend_to(n), terms))) for n in CHECKS)


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_without_a_difference_gates_fail_at_any_time_in_at_most_alpha_of_the_rollouts(alpha: float) -> None:
    terms = Terms(
        min_requests=1,
        max_acceptance_drop=0.0,
        max_error_rate=0.05,
        alpha=alpha,
        first_token_seconds=0.5,
        max_slow_increase=0.0,
    )
    same: dict[str, Any] = {"passes": (0.35, 0.65), "error_rate": 0.05, "slow": 0.1}

    num_failed = sum(
        ever(seed, terms, Stream(f"c{seed}", **same), Stream(f"s{seed}", **same), lambda gate: gate.outcome == "failed")
        for seed in range(NUM_STREAMS)
    )

    assert num_failed <= alpha * NUM_STREAMS


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_a_speculator_that_is_not_better_passes_at_any_time_in_at_most_alpha_of_the_rollouts(alpha: float) -> None:
    terms = Terms(min_requests=1, max_acceptance_drop=0.0, max_error_rate=1.0, alpha=alpha)
    same: dict[str, Any] = {"passes": (0.35, 0.65), "error_rate": 0.0, "slow": 0.0}

    num_passed = sum(
        ever(
            seed,
            terms,
            Stream(f"c{seed}", **same),
            Stream(f"s{seed}", **same),
            lambda gate: gate.name == "acceptance" and gate.outcome == "passed",
        )
        for seed in range(NUM_STREAMS)
    )

    assert num_passed <= alpha * NUM_STREAMS


@pytest.mark.parametrize(
    ("candidate", "gate", "outcome"),
    [
        ({"passes": (0.25, 0.55)}, "acceptance", "passed"),
        ({"passes": (0.45, 0.75)}, "acceptance", "failed"),
        ({"error_rate": 0.1}, "errors", "failed"),
        ({"slow": 0.25}, "first_token", "failed"),
    ],
)
def test_a_real_difference_is_found(candidate: dict[str, Any], gate: str, outcome: str) -> None:
    terms = Terms(min_requests=20, max_acceptance_drop=0.05, max_error_rate=0.01, first_token_seconds=0.5)
    usual: dict[str, Any] = {"passes": (0.35, 0.65), "error_rate": 0.005, "slow": 0.1}

    num_found = sum(
        ever(
            seed,
            terms,
            Stream(f"c{seed}", **{**usual, **candidate}),
            Stream(f"s{seed}", **usual),
            lambda each: (each.name, each.outcome) == (gate, outcome),
        )
        for seed in range(20)
    )

    assert num_found == 20
