"""Follows a predicted answer, which a client sends because it knows most of the text, as when a file is edited.

While the answer agrees with the prediction, the predicted tokens that follow are drafted. After a difference, drafting
continues at the nearest place in the rest of the prediction where the last two tokens of the answer occur. This place
depends on the answer's tokens only, so the number of accepted tokens does not depend on how many tokens a step adds.

Source: OpenAI's predicted outputs.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

_SHORTEST = 4  # at least this many tokens are drafted, and more if more have agreed since the last difference


class PredictionFollower:
    """The place in the prediction after the answer so far. num_accepted: predicted tokens found in the answer."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = prediction
        self._pairs: dict[tuple[int, int], list[int]] = {}  # positions of two neighbouring tokens, ascending
        for position, pair in enumerate(pairwise(prediction)):
            self._pairs.setdefault(pair, []).append(position)
        self._next = 0  # position of the next predicted token
        self._num_agreeing = 0  # number of agreeing tokens since the last difference
        self._is_following = True
        self._last: int | None = None
        self.num_accepted = 0

    @property
    def num_rejected(self) -> int:
        """Number of predicted tokens that are not in the answer so far."""
        return len(self._prediction) - self.num_accepted

    def accept(self, token: int) -> None:
        """Adds the answer's next token."""
        if self._is_following and self._next < len(self._prediction) and self._prediction[self._next] == token:
            self._advance(1)
        else:
            self._is_following, self._num_agreeing = False, 0
            if self._last is not None:
                self._find((self._last, token))
        self._last = token

    def upcoming(self, limit: int) -> Sequence[int]:
        """Returns up to `limit` predicted tokens that may follow."""
        if not self._is_following:
            return ()
        return self._prediction[self._next : self._next + min(limit, max(_SHORTEST, self._num_agreeing))]

    def _find(self, pair: tuple[int, int]) -> None:
        positions = self._pairs.get(pair, ())
        found = bisect_left(positions, self._next)  # earlier tokens are not counted again
        if found < len(positions):
            self._next, self._is_following = positions[found], True
            self._advance(2)

    def _advance(self, count: int) -> None:
        self._next += count
        self._num_agreeing += count
        self.num_accepted += count
