"""Answers that count as looping."""

import random

import pytest

from workers.inference.loops import is_looping


@pytest.mark.parametrize("period", [1, 2, 7, 32])
def test_a_run_of_tokens_that_repeats_often_is_a_loop(period: int) -> None:
    part = list(range(100, 100 + period))
    assert is_looping([1, 2, 3, *part * max(4, -(-24 // period)), 4])


def test_three_occurrences_are_not_a_loop() -> None:
    assert not is_looping(list(range(30)) * 3)


def test_one_token_is_a_loop_from_24_repetitions_on() -> None:
    assert not is_looping([5, *[9] * 23, 6])
    assert is_looping([5, *[9] * 24, 6])


def test_random_tokens_are_not_a_loop() -> None:
    words = random.Random(0).choices(range(50), k=400)
    assert not is_looping(words)
    assert not is_looping([])
