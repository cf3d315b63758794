"""A LoRA adapter is accepted if its configuration is supported and its tensors fit linear layers of the model."""

import json
from pathlib import Path
from typing import Any

import pytest

from control.models.adapters.lora import MAX_CONFIG_BYTES, UnusableAdapter, inspect_adapter
from tests.control.models.adapters.support import CONFIG, SHAPES, tensor_name, weights_of

MODEL = {
    "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 2,
}  # fmt: skip
VALID_SHAPES = {tensor_name(matrix): shape for matrix, shape in SHAPES.items()}


def inspect(tmp_path: Path, *, config: Any = None, shapes: Any = None, model: Any = MODEL) -> Any:
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights_of(VALID_SHAPES if shapes is None else shapes))
    content = config if isinstance(config, bytes) else json.dumps(CONFIG if config is None else config).encode()
    return inspect_adapter(content, weights, model=model)


def test_the_stored_configuration_has_only_checked_keys(tmp_path: Path) -> None:
    shapes = VALID_SHAPES | {
        tensor_name("A", "mlp.down_proj", 1): [3, 16],
        tensor_name("B", "mlp.down_proj", 1): [8, 3],
    }

    lora = inspect(tmp_path, config={**CONFIG, "base_model_name_or_path": "../evil", "x": {"y": 1}}, shapes=shapes)

    assert (lora.rank, lora.target_modules) == (3, ["down_proj", "q_proj"])  # the larger of the ranks 2 and 3
    assert set(lora.config) == {"peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias"}
    assert lora.config["lora_alpha"] == 4


@pytest.mark.parametrize(
    "change",
    [
        {"peft_type": "IA3"}, {"bias": "all"}, {"use_dora": True}, {"modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 4}}, {"auto_mapping": {"parent_library": "evil"}}, {"lora_alpha": 0},
        {"lora_alpha": "4"}, {"lora_alpha": True}, {"fan_in_fan_out": True},
    ],
)  # fmt: skip
def test_an_unsupported_extension_of_lora_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(UnusableAdapter) as refused:
        inspect(tmp_path, config={**CONFIG, **change})
    assert refused.value.param == "config_file"


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b" " * (MAX_CONFIG_BYTES + 1)])
def test_an_invalid_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UnusableAdapter):
        inspect(tmp_path, config=content)


@pytest.mark.parametrize(
    "shapes",
    [
        {tensor_name("A"): [2, 8]},  # no matrix B
        {tensor_name("A"): [2, 8], tensor_name("B"): [8, 3]},  # the ranks 2 and 3
        {tensor_name("A"): [2, 9], tensor_name("B"): [8, 2]},  # the layer has 8 inputs
        {tensor_name("A"): [2, 8], tensor_name("B"): [9, 2]},  # the layer has 8 outputs
        {tensor_name("A", layer=2): [2, 8], tensor_name("B", layer=2): [8, 2]},  # the layers are 0 and 1
        {tensor_name("A", "self_attn.x_proj"): [2, 8], tensor_name("B", "self_attn.x_proj"): [8, 2]},
        # k_proj has 4 outputs: one key-value head with 8 / 2 dimensions.
        {tensor_name("A", "self_attn.k_proj"): [2, 8], tensor_name("B", "self_attn.k_proj"): [8, 2]},
        {tensor_name("A"): [257, 8], tensor_name("B"): [8, 257]},  # the rank is larger than 256
        {"model.embed_tokens.weight": [2, 8]},
        {tensor_name("A"): [16]},
    ],
)
def test_tensors_that_match_no_linear_layer_of_the_model_are_refused(
    tmp_path: Path, shapes: dict[str, list[int]]
) -> None:
    with pytest.raises(UnusableAdapter) as refused:
        inspect(tmp_path, shapes=shapes)
    assert refused.value.param == "weights_file"


def test_the_widths_of_a_model_that_is_not_on_this_machine_are_not_checked(tmp_path: Path) -> None:
    assert inspect(tmp_path, shapes={tensor_name("A"): [2, 9], tensor_name("B"): [7, 2]}, model=None).rank == 2


def test_a_file_that_is_not_safetensors_is_refused(tmp_path: Path) -> None:
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"PK\x03\x04 a pickle in a zip")

    with pytest.raises(UnusableAdapter):
        inspect_adapter(json.dumps(CONFIG).encode(), weights, model=None)
