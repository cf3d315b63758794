"""An answer is looping if a run of tokens is repeated at least 4 times in a row, over at least 24 tokens."""

import random

import pytest

from workers.inference.loops import is_looping


@pytest.mark.parametrize("period", [1, 2, 7, 32])
def test_a_sequence_of_tokens_that_is_repeated_often_is_a_loop(period: int) -> None:
    sequence = list(range(100, 100 + period))
    repetitions = max(4, -(-24 // period))  # the division rounds up
    assert is_looping([1, 2, 3, *sequence * repetitions, 4])


def test_a_sequence_that_occurs_three_times_in_a_row_is_not_a_loop() -> None:
    assert not is_looping(list(range(30)) * 3)


def test_a_repeated_token_is_a_loop_if_it_occurs_24_times_in_a_row() -> None:
    assert not is_looping([5, *[9] * 23, 6])
    assert is_looping([5, *[9] * 24, 6])


def test_random_tokens_are_not_a_loop() -> None:
    tokens = random.Random(0).choices(range(50), k=400)
    assert not is_looping(tokens)
    assert not is_looping([])
