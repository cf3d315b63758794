"""Detects answers that repeat themselves endlessly: they are easy to draft and inflate acceptance figures."""

from collections.abc import Sequence

LONGEST_PERIOD = 32
MIN_REPEATS = 4  # the repeated part and its copies
MIN_TOKENS = 24  # covered by the repetition; shorter ones ("0000", a row of dashes) occur in good answers


def is_looping(token_ids: Sequence[int]) -> bool:
    """Tells whether some run of 1 to `LONGEST_PERIOD` tokens occurs `MIN_REPEATS` times or more in a row."""
    return any(_has_loop(token_ids, period) for period in range(1, LONGEST_PERIOD + 1))


def _has_loop(token_ids: Sequence[int], period: int) -> bool:
    needed = max(MIN_TOKENS, MIN_REPEATS * period) - period  # tokens that equal the one a period before
    equal = 0
    for i in range(period, len(token_ids)):
        equal = equal + 1 if token_ids[i] == token_ids[i - period] else 0
        if equal >= needed:
            return True
    return False
