"""`deadline` ends a block of code that computes for too long, and never interrupts the code after the block."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from engine.deadline import TooSlow, deadline


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Threads take turns after every few bytecodes, as if the machine were busy."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def compute(seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        pass


def test_a_block_that_exceeds_the_deadline_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(TooSlow), deadline(0.05):
        compute(60)

    assert time.monotonic() - began < 60


def test_code_after_the_block_is_not_interrupted() -> None:
    for seconds in (0.0, 0.0005, 0.001, 0.0015) * 50:
        with suppress(TooSlow), deadline(seconds):
            compute(0.001)
    compute(0.05)  # a late exception would be raised here


def test_no_interleaving_of_threads_interrupts_code_outside_the_block(
    eager_switches: None,
) -> None:
    """The timer fires while the block is entered, within the block, at the end of the block and after the block."""
    outcomes = {"ended": 0, "done": 0}
    threads = set(threading.enumerate())
    for number in range(2000):
        try:
            with deadline(number % 20 * 1e-5):
                compute(1e-4)
            outcomes["done"] += 1
        except TooSlow:
            outcomes["ended"] += 1
        compute(1e-5)  # a late exception would be raised here

    assert min(outcomes.values()) > 0, outcomes
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=10)
        assert not thread.is_alive(), "the thread of a timer has not ended"


def test_an_error_raised_inside_the_block_is_passed_on() -> None:
    with pytest.raises(KeyError), deadline(60):
        raise KeyError
