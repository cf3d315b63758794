"""Decides whether and when a failed job is tried again. These are pure functions, which do not access the database.

invalid_input, user_config, expired   no retry
infra                                 retries as long as there is progress: until 3 attempts in a row made no progress,
                                      or 8 attempts were lost (their machine was lost, or their process killed)
out_of_memory                         one retry, in which a batch runs half as many rows at a time
bug                                   three attempts in all
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.contracts import FailureClass

MAX_STALLED_ATTEMPTS = 3
# This limit is higher, because lost attempts say little about the job: machines are preempted, and processes killed.
MAX_LOST_ATTEMPTS = 8
MAX_TRIES: Mapping[FailureClass, int | None] = {
    FailureClass.INVALID_INPUT: 1,
    FailureClass.USER_CONFIG: 1,
    FailureClass.EXPIRED: 1,
    FailureClass.CANCELLED: 1,
    FailureClass.INFRA: None,
    FailureClass.OUT_OF_MEMORY: 2,
    FailureClass.BUG: 3,
}
# For failures of these classes the service is responsible: another attempt may succeed, and the time is credited.
OF_SERVICE = frozenset({FailureClass.INFRA, FailureClass.BUG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """`code` never changes and is meant for programs; `message` is meant for people."""

    failure_class: FailureClass
    code: str
    message: str
    num_rows: int | None = None  # if the memory did not suffice: how many rows the batch ran at a time

    def as_error(self) -> dict[str, str | bool]:
        """Returns the job's field `error`, which the customer sees."""
        return {
            "class": self.failure_class.value,
            "code": self.code,
            "message": self.message,
            "retryable": self.failure_class in OF_SERVICE,
        }


CRASH_LOOP = Failure(
    failure_class=FailureClass.INFRA,
    code="worker_crash_loop",
    message="too many attempts in a row ended without any progress",
)
KILLED = "worker_killed"  # code of a failure: the process was ended from outside, by SIGKILL or SIGTERM
CRASHES = ("worker_crashed", KILLED, "no_progress")  # codes of failures whose cause is unknown


def is_lost(failure: Failure, *, stalled_attempts: int) -> bool:
    """Returns whether the attempt counts as lost.

    An attempt that committed a shard or checkpoint does not count as lost; the commit has set `stalled_attempts` to 0.
    """
    return failure.code == KILLED and stalled_attempts > 0


def final_failure(failure: Failure, *, earlier: int, stalled_attempts: int, lost_attempts: int = 0) -> Failure | None:
    """Returns the failure with which the job ends, or None if it is tried again.

    Args:
        earlier: number of failures of the same class before this one.
        stalled_attempts: number of attempts in a row without progress, including the one that failed.
        lost_attempts: number of lost attempts before the one that failed.
    """
    tries = MAX_TRIES[failure.failure_class]
    if tries is not None and earlier + 1 >= tries:
        return failure
    lost = int(is_lost(failure, stalled_attempts=stalled_attempts))
    if lost_attempts + lost >= MAX_LOST_ATTEMPTS or stalled_attempts - lost >= MAX_STALLED_ATTEMPTS:
        cause = f"{CRASH_LOOP.message}; the last: {failure.code}: {failure.message}"
        has_known_cause = failure.failure_class is FailureClass.INFRA and failure.code not in CRASHES
        code = failure.code if has_known_cause else CRASH_LOOP.code
        return Failure(failure_class=FailureClass.INFRA, code=code, message=cause[:2000])
    return None


def backoff_seconds(stalled_attempts: int, *, first: float, cap: float) -> float:
    """Returns exponential back-off with full jitter, so that many failed jobs are not retried at the same time."""
    return random.uniform(0.0, min(cap, first * 2.0 ** max(0, stalled_attempts - 1)))


def with_half(params: Mapping[str, Any], num_rows: int | None) -> dict[str, Any]:
    """Returns the params with half of `num_rows` as batch size, because the memory did not suffice for all rows.

    If `num_rows` is None, the params are returned unchanged.
    """
    return {**params} if num_rows is None else {**params, "max_batch_size": max(1, num_rows // 2)}
