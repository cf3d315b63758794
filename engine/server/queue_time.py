"""How long until places are free, judged by how fast they came free lately."""

import math
from collections import deque

_NUM_REMEMBERED = 32
_LONGEST_SECONDS = 60


class QueueTime:
    """`now`: seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._freed_at: deque[float] = deque(maxlen=_NUM_REMEMBERED)

    def freed(self, now: float) -> None:
        self._freed_at.append(now)

    def seconds_until(self, num_places: int, now: float) -> int:
        """Whole seconds, 1 to 60, until so many more places are likely to be free; 1 where nothing is known."""
        if len(self._freed_at) < 2 or now <= self._freed_at[0]:
            return 1
        seconds = num_places * (now - self._freed_at[0]) / len(self._freed_at)
        return max(1, min(_LONGEST_SECONDS, math.ceil(seconds)))
