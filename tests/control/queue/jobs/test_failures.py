"""The failure class decides whether an attempt is retried; the number of attempts decides after which delay."""

import pytest

from control.queue.jobs.failures import Failure, backoff_seconds, final_failure
from workers.contracts import FailureClass


def failure(failure_class: FailureClass) -> Failure:
    return Failure(failure_class=failure_class, code="code", message="message")


@pytest.mark.parametrize(
    ("failure_class", "max_attempts"),
    [
        (FailureClass.INVALID_INPUT, 1),
        (FailureClass.USER_CONFIG, 1),
        (FailureClass.EXPIRED, 1),
        (FailureClass.OUT_OF_MEMORY, 2),
        (FailureClass.BUG, 3),
    ],
)
def test_each_failure_class_allows_a_fixed_number_of_attempts(failure_class: FailureClass, max_attempts: int) -> None:
    original = failure(failure_class)
    final_failures = [final_failure(original, earlier=n, stalled_attempts=0) for n in range(max_attempts)]
    assert final_failures == [None] * (max_attempts - 1) + [original]


def test_infra_failures_are_retried_without_limit_while_there_is_progress_and_three_times_otherwise() -> None:
    original = Failure(failure_class=FailureClass.INFRA, code="worker_crashed", message="message")
    assert final_failure(original, earlier=1000, stalled_attempts=2) is None
    final = final_failure(original, earlier=0, stalled_attempts=3)
    assert final is not None
    assert final.code == "worker_crash_loop"
    assert "worker_crashed: message" in final.message, "the operator needs to see the last cause"


def test_a_failure_with_a_known_cause_keeps_its_code() -> None:
    full = Failure(failure_class=FailureClass.INFRA, code="disk_full", message="message")
    final = final_failure(full, earlier=0, stalled_attempts=3)
    assert final is not None
    assert (final.failure_class, final.code) == (FailureClass.INFRA, "disk_full")


def test_delays_between_attempts_double_up_to_a_limit() -> None:
    longest = [max(backoff_seconds(n, first=5, cap=60) for _ in range(300)) for n in range(1, 7)]
    for bound, delay in zip([5, 10, 20, 40, 60, 60], longest, strict=True):
        assert bound / 2 < delay <= bound  # delays are uniform in [0, bound]; `delay` is the longest of 300
