"""Tests of the files with hidden states, which let later training runs skip the target's passes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.load import load_model
from engine.models.base import Hidden, Model
from tests.tiny_model import make_tiny_model
from workers.training.kept_states import KeptStates

TOKENS = (5, 7, 9, 11)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("layers", [(), (1,), (2, 0)])
def test_hidden_states_from_a_file_equal_those_that_the_model_computes(
    model: Model, tmp_path: Path, layers: tuple[int, ...]
) -> None:
    kept, computed = KeptStates(tmp_path), model.hidden_states(torch.tensor(TOKENS), layers)

    for found in (kept.of(model, TOKENS, layers), kept.of(model, TOKENS, layers)):
        assert torch.equal(found.final, computed.final)
        assert (found.taps is None) == (computed.taps is None)
        if found.taps is not None and computed.taps is not None:
            assert torch.equal(found.taps, computed.taps)


def test_the_hidden_states_of_a_conversation_are_computed_again_only_if_layers_are_missing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed_layers = []
    compute = model.hidden_states

    def recorded(token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        computed_layers.append(tuple(tap_layers))
        return compute(token_ids, tap_layers)

    monkeypatch.setattr(model, "hidden_states", recorded)
    for layers in ((1,), (1,), (0, 2), (), (2, 1)):
        KeptStates(tmp_path).of(model, TOKENS, layers)

    assert computed_layers == [(1,), (0, 1, 2)]  # the second file replaces the first and has all layers
