"""Tapped hidden states of the target (engine/models/base.py) have the same layer numbers as in transformers."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from engine.load import load_model
from engine.models.dense import Decoder
from kernels.norm import rms_norm_reference
from tests.tiny_model import make_tiny_model


def test_tapped_hidden_states_agree_with_transformers(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3", num_layers=3)
    token_ids = torch.randint(0, 250, (90,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        expected = reference(token_ids.unsqueeze(0), output_hidden_states=True).hidden_states
        model = load_model(folder, dtype="float32")
        assert isinstance(model, Decoder)
        hidden = model.hidden_states(token_ids, (2, 0, 3, 1))  # taps[:, 0] is tap 2, taps[:, 1] is tap 0, ...
        assert hidden.taps is not None
        normed_tap_3 = rms_norm_reference(
            hidden.taps[:, 2], model.weights.final_norm, model.config.norm_eps, torch.float32
        )

    assert hidden.taps.shape == (90, 4, 64)
    for index, layer in ((0, 2), (1, 0), (3, 1)):
        torch.testing.assert_close(hidden.taps[:, index], expected[layer][0], rtol=0, atol=1e-4)
    # transformers applies the final norm to the hidden state of the last layer, number 3.
    torch.testing.assert_close(normed_tap_3, expected[3][0], rtol=0, atol=1e-4)
    torch.testing.assert_close(hidden.final, expected[3][0], rtol=0, atol=1e-4)
