"""The dense decoder computes the same logits as transformers, and refuses unsupported model folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config import ModelConfig
from engine.errors import ModelNotLoadable
from engine.load import load_model
from tests.tiny_model import make_tiny_model


def difference(folder: Path, length: int = 90) -> float:
    """Returns the largest difference between our logits and those of transformers."""
    token_ids = torch.randint(0, 250, (length,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        expected = reference(token_ids.unsqueeze(0)).logits[0]
        model = load_model(folder, dtype="float32")
        logits = model.logits(model.hidden_states(token_ids).final)
    assert logits.abs().max() > 0.1, "logits that are all zero would agree with anything"
    return float((logits - expected).abs().max())


def edit_config(folder: Path, **values: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_agree_with_transformers(tmp_path: Path, architecture: str, tied: bool) -> None:
    assert difference(make_tiny_model(tmp_path, architecture, tie_word_embeddings=tied)) <= 1e-4


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500.0,
         "original_max_position_embeddings": 64},
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
        {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64},
    ],
    ids=lambda rope: rope["rope_type"],
)  # fmt: skip
def test_logits_with_scaled_rotary_positions_agree_with_transformers(tmp_path: Path, rope: dict[str, Any]) -> None:
    assert difference(edit_config(make_tiny_model(tmp_path, "llama"), rope_parameters=rope)) <= 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "nothing"}, "model_type must be one of transformers' causal models, got 'nothing'"),
        ({"vocab_size": None, "hidden_size": None}, "config.json of a llama must have hidden_size, vocab_size"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers must be a whole number, got '2'"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu, got 'gelu'"),
        ({"vocab_size": 7}, r"embed_tokens.weight must be \[7, 64\], got"),
        ({"num_hidden_layers": 3}, "holds no tensor model.layers.2"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "rope_type must be default"),
    ],
)
def test_the_error_for_an_unsupported_model_folder_gives_the_reason(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelNotLoadable, match=message):
        load_model(edit_config(make_tiny_model(tmp_path, "llama"), **changes))


def test_the_error_for_a_damaged_weight_file_gives_the_reason(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "llama")
    (folder / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00garbage!")
    with pytest.raises(ModelNotLoadable, match="can't be read"):
        load_model(folder)


def test_the_maximum_context_is_limited_by_the_attention_window(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "mistral", max_position_embeddings=64)
    assert load_model(folder).max_positions == 64
    assert load_model(edit_config(folder, sliding_window=48)).max_positions == 48
    assert load_model(edit_config(folder, sliding_window=None)).max_positions == 64


def test_the_end_of_sequence_tokens_of_both_config_files_are_used(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "llama")
    edit_config(folder, eos_token_id=2)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    assert ModelConfig.from_folder(folder).eos_token_ids == {2, 5}
