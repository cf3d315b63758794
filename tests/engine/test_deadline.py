"""Code that computes for too long is ended; code that does not is left alone, also later."""

import time
from contextlib import suppress

import pytest

from engine.deadline import TooSlow, deadline


def compute(seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        pass


def test_what_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(TooSlow), deadline(0.05):
        compute(60)

    assert time.monotonic() - began < 60


def test_what_is_done_is_not_ended_afterwards() -> None:
    for seconds in (0.0, 0.0005, 0.001, 0.0015) * 50:
        with suppress(TooSlow), deadline(seconds):
            compute(0.001)
    compute(0.05)  # whatever were still on its way would end this


def test_an_error_of_its_own_is_not_lost() -> None:
    with pytest.raises(KeyError), deadline(60):
        raise KeyError
