"""A quantized checkpoint computes what a float32 checkpoint with the same weights computes, or is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import ModelNotLoadable
from engine.load import load_model
from tests.engine.models.quantized.checkpoints import CASES, Stored, describe, make_quantized

TOKEN_IDS = torch.randint(0, 250, (40,), generator=torch.Generator().manual_seed(1))


def hidden_states(folder: Path) -> Tensor:
    return load_model(folder, dtype="float32").hidden_states(TOKEN_IDS).final


@pytest.mark.parametrize("name", CASES)
def test_a_quantized_checkpoint_computes_the_same_as_its_weights_in_float32(tmp_path: Path, name: str) -> None:
    quantized, exact = make_quantized(tmp_path, name)

    assert (hidden_states(quantized) - hidden_states(exact)).abs().max() <= 1e-4


@pytest.mark.parametrize("name", ["fp8 blocks", "awq", "gptq desc_act"])
@pytest.mark.parametrize("architecture", ["deepseek_v3", "mixtral", "olmo2"])
def test_every_family_of_models_reads_quantized_weights(tmp_path: Path, name: str, architecture: str) -> None:
    quantized, exact = make_quantized(tmp_path, name, architecture)

    assert (hidden_states(quantized) - hidden_states(exact)).abs().max() <= 1e-4


def remove(suffix: str) -> Callable[[Stored], object]:
    return lambda stored: stored.pop(suffix)


def shorten(suffix: str) -> Callable[[Stored], object]:
    return lambda stored: stored.update({suffix: stored[suffix][..., :-1]})


def fill(suffix: str, value: float) -> Callable[[Stored], object]:
    return lambda stored: stored.update({suffix: torch.full_like(stored[suffix], value)})


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("fp8 blocks", remove("weight_scale_inv"), "quantization_scales_missing"),
        ("compressed int8", remove("weight_scale"), "quantization_scales_missing"),
        ("compressed int4", remove("weight_scale"), "quantization_scales_missing"),
        ("compressed int4", remove("weight_shape"), "quantization_scales_missing"),
        ("awq", remove("scales"), "quantization_scales_missing"),
        ("awq", remove("qzeros"), "quantization_scales_missing"),
        ("gptq", remove("scales"), "quantization_scales_missing"),
        ("gptq", remove("qzeros"), "quantization_scales_missing"),
        ("gptq desc_act", remove("g_idx"), "quantization_scales_missing"),
        ("fp8 blocks", shorten("weight_scale_inv"), "quantized_weights_invalid"),
        ("compressed int4", shorten("weight_scale"), "quantized_weights_invalid"),
        ("compressed int4", shorten("weight_packed"), "quantized_weights_invalid"),
        ("compressed int4 with zeros", shorten("weight_zero_point"), "quantized_weights_invalid"),
        ("awq", shorten("scales"), "quantized_weights_invalid"),
        ("awq", shorten("qzeros"), "quantized_weights_invalid"),
        ("gptq", shorten("qzeros"), "quantized_weights_invalid"),
        ("gptq", shorten("g_idx"), "quantized_weights_invalid"),
        ("gptq desc_act", fill("g_idx", 99), "quantized_weights_invalid"),
        ("compressed int4 out of order", fill("weight_g_idx", 99), "quantized_weights_invalid"),
        ("awq", fill("scales", float("nan")), "quantized_weights_invalid"),
        ("fp8 per tensor", fill("weight_scale", float("inf")), "quantized_weights_invalid"),
        # GPTQ stores each zero point minus one. All bits set is the zero point 0, stored as -1 in four bits.
        ("gptq", fill("qzeros", -1), "quantized_weights_invalid"),
    ],
)
def test_missing_or_inconsistent_tensors_are_refused(
    tmp_path: Path, name: str, change: Callable[[Stored], object], code: str
) -> None:
    quantized, _ = make_quantized(tmp_path, name, change=change)

    with pytest.raises(ModelNotLoadable) as refused:
        load_model(quantized)
    assert refused.value.code == code, refused.value


INT4 = {"type": "int", "num_bits": 4, "group_size": 32}


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "fp8", "fmt": "e5m2"},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "awq", "bits": 3},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {"quant_method": "gptq", "bits": 4, "group_size": 0},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {}}},
        {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {"g": {"weights": INT4}}},
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"g": {"weights": INT4 | {"num_bits": 3}}},
        },
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"g": {"weights": INT4}},
            "transform_config": {"config_groups": {"u": {}}},
        },
    ],
)
@pytest.mark.parametrize("architecture", ["llama", "olmo2"])
def test_an_unsupported_quantization_is_refused(
    tmp_path: Path, architecture: str, quantization: dict[str, Any]
) -> None:
    quantized, _ = make_quantized(tmp_path, "compressed int4", architecture)
    describe(quantized, quantization)

    with pytest.raises(ModelNotLoadable, match=r"upload the bf16 checkpoint|correct config\.json") as refused:
        load_model(quantized)
    assert refused.value.code == "quantized_checkpoint"


def test_int8_weights_without_a_quantization_config_are_refused(tmp_path: Path) -> None:
    quantized, _ = make_quantized(tmp_path, "compressed int8")
    describe(quantized, {})

    with pytest.raises(ModelNotLoadable, match="add quantization_config") as refused:
        load_model(quantized)
    assert refused.value.code == "quantization_scales_missing"
