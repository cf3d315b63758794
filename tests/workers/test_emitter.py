"""`EventWriter` limits the rate of progress events, and writes all other events."""

import io
import json

from workers.contracts import Metrics, Progress
from workers.emitter import EventWriter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def done_values(stream: io.StringIO) -> list[int]:
    return [json.loads(line)["done"] for line in stream.getvalue().splitlines()]


def test_progress_events_are_written_at_most_twice_per_second() -> None:
    stream, clock = io.StringIO(), Clock()
    emit = EventWriter(stream, clock=clock)
    for done in range(20):
        clock.now = done * 0.125
        emit(Progress(done=done, total=100, unit="rows"))
    assert done_values(stream) == [0, 4, 8, 12, 16]


def test_the_progress_event_with_done_equal_to_total_is_always_written() -> None:
    stream = io.StringIO()
    emit = EventWriter(stream, clock=Clock())
    for done in (98, 99, 100):
        emit(Progress(done=done, total=100, unit="rows"))
    assert done_values(stream) == [98, 100]


def test_metrics_events_are_always_written() -> None:
    stream = io.StringIO()
    emit = EventWriter(stream, clock=Clock())
    for step in range(3):
        emit(Metrics(step=step, data={"loss": 1.0}))
    assert len(stream.getvalue().splitlines()) == 3
