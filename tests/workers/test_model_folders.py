"""Configurations that make a loader import code, and quantizations that the engine cannot read, are found."""

from typing import Any

import pytest

from workers.model_folders import CODE_KEYS, code_key, quantization_method, unreadable_quantization


@pytest.mark.parametrize("key", sorted(CODE_KEYS))
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_code_key_is_found_at_any_depth(key: str, depth: int) -> None:
    values: Any = {"hidden_size": 8, key: {}}
    for _ in range(depth):
        values = {"parts": [{"harmless": 1}, values]}

    assert code_key(values) == key


def test_a_configuration_without_code_keys_is_accepted() -> None:
    assert code_key({"model_type": "llama", "rope": {"factor": 2.0}, "names": ["auto_map"]}) is None


def test_a_very_deep_configuration_is_searched_without_recursion() -> None:
    values: Any = {"auto_map": {}}
    for _ in range(100_000):
        values = [values]

    assert code_key(values) == "auto_map"


QUANTIZED: dict[str, tuple[dict[str, Any], str]] = {
    "fp8": ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8"),
    "compressed-tensors": (
        {"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}},
        "compressed-tensors",
    ),
    "compression_config": ({"compression_config": {"quant_method": "sparseml"}}, "sparseml"),
    "awq": ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
    "gptq": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
    "bitsandbytes without a method": ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
    "mlx": ({"quantization": {"bits": 4, "group_size": 64}}, "unknown"),
    "modelopt": ({"quantization_config": {"quant_algo": "NVFP4"}}, "NVFP4"),
    "unknown": ({"quantization_config": {"bits": 3}}, "unknown"),
    "method is not a string": ({"quantization_config": {"quant_method": 7}}, "unknown"),
    "string instead of an object": ({"quantization_config": "fp8"}, "fp8"),
    "submodel": ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_quantization_method_of_a_configuration_is_found(name: str) -> None:
    values, method = QUANTIZED[name]

    assert quantization_method({"model_type": "llama", **values}) == method


def test_a_configuration_with_empty_quantization_keys_is_not_quantized() -> None:
    values: dict[str, object] = {
        "model_type": "llama",
        "quantization_config": None,
        "text_config": {"quantization_config": {}},
    }

    assert quantization_method(values) is None


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantization_is_readable_only_if_the_top_level_of_config_json_names_a_readable_method(name: str) -> None:
    values, _ = QUANTIZED[name]

    assert (unreadable_quantization(values, []) is None) == (name in ("fp8", "compressed-tensors", "awq", "gptq"))


def test_the_file_of_modelopt_is_refused_even_if_config_json_describes_a_readable_quantization() -> None:
    values, _ = QUANTIZED["fp8"]

    assert unreadable_quantization(values, ["quant_config.json"]) is None
    assert "hf_quant_config.json" in (unreadable_quantization(values, ["hf_quant_config.json"]) or "")
