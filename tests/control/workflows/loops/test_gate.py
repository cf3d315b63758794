"""The gate compares the new speculator with the serving one, at the concurrency at which the new one gains least."""

import pytest

from control.workflows.loops.gate import compared, objection


def arm(name: str, lengths: dict[int, float]) -> dict[str, object]:
    points = [{"concurrency": at, "acceptance_length": length} for at, length in lengths.items()]
    return {"name": name, "concurrencies": points}


REPORT = {"arms": [arm("new", {1: 2.4, 8: 2.0}), arm("old", {1: 1.8, 8: 1.9})]}


@pytest.mark.parametrize(("concurrency", "judged"), [(None, 8), (1, 1), (8, 8)])
def test_the_smallest_gain_decides_unless_a_concurrency_is_named(concurrency: int | None, judged: int) -> None:
    figures = compared(REPORT, new="new", old="old", concurrency=concurrency)
    assert figures is not None
    assert figures["concurrency"] == judged


@pytest.mark.parametrize(("gain", "passes"), [(0.0, True), (0.05, True), (0.06, False)])
def test_the_gain_is_relative_to_the_speculator_that_serves(gain: float, passes: bool) -> None:
    figures = compared(REPORT, new="new", old="old", concurrency=8)
    assert figures is not None
    assert (objection(figures, gain) is None) == passes
