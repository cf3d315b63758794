"""Detects answers that repeat the same tokens endlessly. Loops are easy to draft and inflate acceptance figures."""

from collections.abc import Sequence

LONGEST_PERIOD = 32
MIN_REPEATS = 4  # number of occurrences of the repeated tokens, including the first occurrence
MIN_TOKENS = 24  # length of all occurrences together; shorter loops ("0000", a row of dashes) occur in good answers


def is_looping(token_ids: Sequence[int]) -> bool:
    """Tells whether a run of 1 to `LONGEST_PERIOD` tokens is repeated at least `MIN_REPEATS` times in a row.

    All repetitions together must have at least `MIN_TOKENS` tokens.
    """
    return any(_has_loop(token_ids, period) for period in range(1, LONGEST_PERIOD + 1))


def _has_loop(token_ids: Sequence[int], period: int) -> bool:
    # In a loop, every token after the first occurrence equals the token one period earlier.
    needed = max(MIN_TOKENS, MIN_REPEATS * period) - period
    equal = 0
    for i in range(period, len(token_ids)):
        equal = equal + 1 if token_ids[i] == token_ids[i - period] else 0
        if equal >= needed:
            return True
    return False
