"""Hidden states that are kept for other runs with the same answers."""

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
def test_kept_states_equal_the_models_on_the_first_and_second_read(
    model: Model, tmp_path: Path, layers: tuple[int, ...]
) -> None:
    kept, computed = KeptStates(tmp_path), model.hidden_states(torch.tensor(TOKENS), layers)

    for found in (kept.of(model, TOKENS, layers), kept.of(model, TOKENS, layers)):
        assert torch.equal(found.final, computed.final)
        assert (found.taps is None) == (computed.taps is None)
        if found.taps is not None and computed.taps is not None:
            assert torch.equal(found.taps, computed.taps)


def test_a_conversation_is_computed_again_only_for_new_layers(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    compute = model.hidden_states

    def counted(token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        passes.append(tuple(tap_layers))
        return compute(token_ids, tap_layers)

    monkeypatch.setattr(model, "hidden_states", counted)
    for layers in ((1,), (1,), (0, 2), (), (2, 1)):
        KeptStates(tmp_path).of(model, TOKENS, layers)

    assert passes == [(1,), (0, 1, 2)]
