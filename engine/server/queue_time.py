"""Estimates the waiting time of refused requests from the rate at which choices ended recently."""

import math
from collections import deque

_NUM_REMEMBERED = 32  # the rate is computed from the times at which this many choices ended last
_LONGEST_SECONDS = 60


class QueueTime:
    """The rate at which choices end. `now`: seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._ended_at: deque[float] = deque(maxlen=_NUM_REMEMBERED)

    def choice_ended(self, now: float) -> None:
        self._ended_at.append(now)

    def seconds_until(self, num_choices: int, now: float) -> int:
        """Estimates the whole seconds, 1..60, until `num_choices` more choices have ended; 1 without observations."""
        if len(self._ended_at) < 2 or now <= self._ended_at[0]:
            return 1
        seconds = num_choices * (now - self._ended_at[0]) / len(self._ended_at)
        return max(1, min(_LONGEST_SECONDS, math.ceil(seconds)))
