"""Plans predict the bytes that a loaded model needs for its weights and for each position in the KV cache.

A quantized weight is widened if the engine converts it to the model's dtype, because no kernel reads its format.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cache.kv_cache import KVCache
from engine.config import read_config
from engine.load import load_model
from engine.models.quantized.report import report_weights
from tests.engine.loaded_weights import loaded_bytes
from tests.engine.models.quantized.checkpoints import CASES, Stored, make_mxfp4, make_quantized
from tests.tiny_model import make_tiny_model
from workers.model_sizes import ModelSizes
from workers.planning import kv_slot_bytes, weight_bytes
from workers.stored_weights import read_stored

QWEN3_MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 96, "num_layers": 3}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"architecture": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"architecture": "qwen3_moe", **QWEN3_MOE},
    "qwen3_moe, one dense layer": {"architecture": "qwen3_moe", **QWEN3_MOE, "mlp_only_layers": [1]},
    "qwen3_moe, every second layer": {"architecture": "qwen3_moe", **QWEN3_MOE, "decoder_sparse_step": 2},
    "deepseek_v3": {"architecture": "deepseek_v3", "num_layers": 3},
    "deepseek_v3, one query matrix": {"architecture": "deepseek_v3", "q_lora_rank": None},
}


def sizes_of(folder: Path) -> ModelSizes:
    sizes = ModelSizes.of(read_config(folder), read_stored(folder))
    assert ModelSizes.from_json(json.loads(json.dumps(asdict(sizes)))) == sizes  # as the control plane stores them
    return sizes


@pytest.mark.parametrize("weights", ["auto", "bf16", "int8", "int4"])
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_are_planned_exactly(tmp_path: Path, name: str, weights: str) -> None:
    folder = make_tiny_model(tmp_path, **MIXTURES[name])
    if name.startswith("deepseek") and weights.startswith("int"):
        pytest.skip("DeepSeek-V3 is computed in the model's dtype only")

    model = load_model(folder, weights=weights, dtype="auto" if weights != "bf16" else "bfloat16", device="cpu")

    config = read_config(folder) | ({"dtype": "bfloat16"} if weights == "bf16" else {})
    sizes = ModelSizes.of(config, read_stored(folder))
    assert weight_bytes(sizes, weights, device="cpu") == loaded_bytes(model)
    assert kv_slot_bytes(sizes) == KVCache.slot_bytes(model.config, model.dtype)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3_moe"])
@pytest.mark.parametrize("name", CASES)
def test_quantized_checkpoints_are_planned_in_the_format_that_the_engine_keeps(
    tmp_path: Path, name: str, architecture: str
) -> None:
    folder, _ = make_quantized(tmp_path, name, architecture, **(QWEN3_MOE if architecture == "qwen3_moe" else {}))

    model = load_model(folder, device="cpu")

    sizes = sizes_of(folder)
    assert weight_bytes(sizes, "auto", device="cpu") == loaded_bytes(model)
    kept = report_weights(folder, model).kernel
    assert sizes.kept_format == ("fp8" if "fp8" in name and "blocks" not in name else kept if "int" in kept else None)


@pytest.mark.parametrize("change", ["widened", "removed"])
def test_if_one_weight_must_be_widened_the_plan_assumes_it_for_all_weights(tmp_path: Path, change: str) -> None:
    """The plan may overestimate, which wastes memory; if it underestimated, the engine would run out of memory."""

    def spoil(stored: Stored) -> None:
        if change == "removed":
            shape = stored["weight"].shape
            stored.clear()
            stored["weight"] = torch.zeros(shape)
        else:
            stored["weight"][3, 5] = -128

    folder, _ = make_quantized(tmp_path, "compressed int8", change=spoil)

    assert sizes_of(folder).kept_format is None
    assert weight_bytes(sizes_of(folder), "auto", device="cpu") >= loaded_bytes(load_model(folder, device="cpu"))


WRAPPED: dict[str, dict[str, Any]] = {
    "gemma3_text": {"sliding_window": 16},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": {},
    "glm4": {},
    "gpt2": {"num_key_value_heads": 4},  # GPT-2 has as many KV heads as query heads
    "gpt_neox": {"num_key_value_heads": 4},
    "qwen2_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}


@pytest.mark.parametrize("model_type", WRAPPED)
def test_models_of_transformers_are_planned_from_their_files(tmp_path: Path, model_type: str) -> None:
    folder = make_tiny_model(tmp_path, model_type, **{"vocab_size": 288} | WRAPPED[model_type])

    model = load_model(folder, device="cpu")

    sizes = sizes_of(folder)
    # the difference is due to biases, norms and the padding of small routers
    assert weight_bytes(sizes, "auto", device="cpu") == pytest.approx(loaded_bytes(model), rel=0.02)
    assert kv_slot_bytes(sizes) == KVCache.slot_bytes(model.config, model.dtype)


def test_mxfp4_experts_are_planned_as_bf16(tmp_path: Path) -> None:
    quantized, exact = make_mxfp4(tmp_path, vocab_size=288)

    planned = [weight_bytes(sizes_of(folder), "auto", device="cpu") for folder in (quantized, exact)]

    assert planned[0] == planned[1] == pytest.approx(loaded_bytes(load_model(quantized, device="cpu")), rel=0.02)


@pytest.mark.parametrize("name", ["awq", "gptq 8 bits", "fp8 blocks", "compressed int4 with zeros"])
def test_models_of_transformers_with_widened_weights_are_planned_in_their_dtype(tmp_path: Path, name: str) -> None:
    folder, exact = make_quantized(tmp_path, name, "olmo2")

    planned = weight_bytes(sizes_of(folder), "auto", device="cpu")

    assert planned == pytest.approx(weight_bytes(sizes_of(exact), "auto", device="cpu"), rel=0.001)
