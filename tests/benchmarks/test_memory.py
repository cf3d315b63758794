"""Loading reads weights in pieces, and an engine uses about as much memory as was planned."""

import sys
from pathlib import Path

import pytest

from benchmarks.memory import FORMATS, KINDS, measure_in_child, write_random_model
from examples.prepare_model import prepare

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


CASES = [*(("dense", weights) for weights in FORMATS), *((kind, "auto") for kind in KINDS if kind != "dense")]


@pytest.mark.wide
@pytest.mark.parametrize(("kind", "weights"), CASES)
def test_loading_takes_little_more_memory_than_the_weights(tmp_path: Path, kind: str, weights: str) -> None:
    num_layers = 6 if kind == "mixture" else 30
    folder = write_random_model(tmp_path, hidden_size=512, num_layers=num_layers, vocab_size=8000, kind=kind)

    measured = measure_in_child(folder, weights)

    others = 50e6  # bytes that a process needs in addition, for any model
    assert 0.9 * measured.planned_weights < measured.peak < 1.2 * measured.planned_weights + others
    tokenizer = 40e6  # bytes that the plan contains for a tokenizer, which this model does not have
    assert abs(measured.planned - tokenizer - measured.used) < 0.1 * measured.used


@pytest.mark.wide
@pytest.mark.parametrize("weights", FORMATS)
def test_the_planned_memory_differs_by_less_than_a_tenth_from_the_used_memory(weights: str) -> None:
    measured = measure_in_child(prepare(), weights)

    assert abs(measured.planned - measured.used) < 0.1 * measured.used
