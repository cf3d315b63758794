"""Plans of an engine's memory: what fits, what does not, and that every plan keeps to its budget."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.planning import DoesNotFit, ModelSizes, Plan, UnknownSizes, Wanted, kv_slot_bytes, plan, weight_bytes

QWEN_32B: dict[str, Any] = {  # config.json of DeepSeek-R1-Distill-Qwen-32B
    "model_type": "qwen2",
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
LARGE = ModelSizes.of(QWEN_32B)
SMALL = ModelSizes.of(SMOLLM2)
GPU_80_GB = int(0.95 * 80e9)


def test_the_bytes_of_a_position_and_of_the_weights_follow_from_the_published_sizes() -> None:
    assert kv_slot_bytes(LARGE) == 2 * 64 * 8 * 128 * 2
    assert kv_slot_bytes(SMALL) == 2 * 30 * 3 * 64 * 2
    num_parameters = 32.76e9  # as published; norms and biases are left out of the plan
    assert weight_bytes(SMALL, "int4", device="cpu") < weight_bytes(SMALL, "int8", device="cpu")
    assert weight_bytes(LARGE, "auto", device="cuda") == pytest.approx(2 * num_parameters, rel=0.001)


def test_a_32b_model_in_bf16_answers_reasoning_traces_on_one_80_gb_gpu() -> None:
    planned = plan(LARGE, Wanted(device="cuda", memory_bytes=GPU_80_GB))

    assert planned.context > 28_000
    assert planned.num_sequences(4096) == 7


def test_int8_weights_leave_a_32b_model_its_whole_context_on_one_80_gb_gpu() -> None:
    planned = plan(LARGE, Wanted(device="cuda", memory_bytes=GPU_80_GB, weights="int8"))

    assert planned.context == 131_072
    assert planned.num_sequences(8192) == 16


def _float8(**changes: Any) -> dict[str, Any]:
    weights = {"type": "float", "num_bits": 8, "strategy": "channel", **changes.pop("weights", {})}
    group = {"targets": changes.pop("targets", ["Linear"]), "weights": weights}
    described = {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"group_0": group}}
    return {**QWEN_32B, "quantization_config": {**described, **changes}}


def test_layers_stored_in_float8_are_planned_in_float8_on_cuda_alone() -> None:
    sizes = ModelSizes.of(_float8())
    layers = LARGE.num_layers * sum(rows * columns for rows, columns in LARGE.linears())
    scales = 4 * LARGE.num_layers * sum(rows for rows, _ in LARGE.linears())

    saved = weight_bytes(LARGE, "auto", device="cuda") - weight_bytes(sizes, "auto", device="cuda")

    assert saved == layers - scales
    assert weight_bytes(sizes, "auto", device="cpu") == weight_bytes(LARGE, "auto", device="cpu")


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": {"strategy": "block"}},
        {"weights": {"type": "int"}},
        {"targets": ["re:.*mlp.*"]},
        {"ignore": ["lm_head", "model.layers.0.mlp.down_proj"]},
        {"config_groups": {}},
        {"config_groups": {"group_0": None}},
        {"quant_method": "awq"},
    ],
)
def test_checkpoints_that_may_be_widened_are_planned_in_the_dtype_of_the_model(changes: dict[str, Any]) -> None:
    sizes = ModelSizes.of(_float8(**changes))

    assert weight_bytes(sizes, "auto", device="cuda") == weight_bytes(LARGE, "auto", device="cuda")


def test_a_context_that_does_not_fit_is_refused_with_the_bytes_of_each_part() -> None:
    with pytest.raises(DoesNotFit, match=r"65,536 tokens needs 85\.\d+ GB.*weights 65\.53 GB") as raised:
        plan(LARGE, Wanted(device="cuda", memory_bytes=GPU_80_GB, context=65_536))

    assert raised.value.parts.kv_cache == (65_536 + 32) * kv_slot_bytes(LARGE)


def test_a_model_that_is_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(DoesNotFit, match=r"may use 24\.00 GB"):
        plan(LARGE, Wanted(device="cuda", memory_bytes=int(24e9)))


def test_the_memory_of_a_speculator_and_of_adapters_is_taken_from_the_kv_cache() -> None:
    wanted = Wanted(device="cuda", memory_bytes=GPU_80_GB)
    alone = plan(LARGE, wanted)
    with_others = plan(LARGE, replace(wanted, speculator_bytes=10**9, adapter_bytes=10**8))

    assert alone.parts.kv_cache - with_others.parts.kv_cache == pytest.approx(1.1e9, abs=kv_slot_bytes(LARGE))


@given(
    memory_bytes=st.integers(10**8, 10**12),
    context=st.none() | st.integers(1, 200_000),
    concurrency=st.integers(1, 1_000),
    drafter_slot_bytes=st.integers(0, 10**6),
    weights=st.sampled_from(["auto", "int8", "int4"]),
    device=st.sampled_from(["cpu", "cuda"]),
    sizes=st.sampled_from([SMALL, LARGE]),
)
def test_a_plan_keeps_to_its_memory_and_more_memory_never_serves_less(
    sizes: ModelSizes, memory_bytes: int, **values: Any
) -> None:
    wanted = Wanted(memory_bytes=memory_bytes, **values)
    planned = _plan_or_refusal(sizes, wanted)
    if isinstance(planned, DoesNotFit):
        assert planned.parts.total > memory_bytes
        return
    richer = plan(sizes, replace(wanted, memory_bytes=memory_bytes + 10**9))

    assert planned.parts.total <= memory_bytes
    assert planned.num_sequences(planned.context) >= 1
    assert wanted.context is None or planned.context == min(wanted.context, sizes.max_positions)
    assert richer.kv_slots >= planned.kv_slots
    assert richer.context >= planned.context


def _plan_or_refusal(sizes: ModelSizes, wanted: Wanted) -> Plan | DoesNotFit:
    try:
        return plan(sizes, wanted)
    except DoesNotFit as refusal:
        return refusal


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0, -1, "many", True])
def test_a_config_without_a_needed_size_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UnknownSizes, match=f"positive whole number {name}"):
        ModelSizes.of({**SMOLLM2, name: value})


@pytest.mark.parametrize("model_type", ["deepseek_v3", "mixtral", "gpt_neox", None])
def test_only_dense_decoders_are_planned(model_type: str | None) -> None:
    with pytest.raises(UnknownSizes, match=f"a model of type {model_type!r} cannot be planned"):
        ModelSizes.of({**SMOLLM2, "model_type": model_type})


def test_a_sliding_window_limits_the_context() -> None:
    assert ModelSizes.of({**SMOLLM2, "model_type": "mistral", "sliding_window": 4096}).max_positions == 4096


def test_the_weights_and_the_cache_of_a_rank_fall_with_the_number_of_ranks() -> None:
    whole, half, eighth = (weight_bytes(LARGE, "auto", device="cpu", tensor_parallel=degree) for degree in (1, 2, 8))
    tables = LARGE.table_bytes  # one process also keeps an unpacked LM head and the whole embedding
    assert half == (whole - tables // 2) // 2
    assert eighth == (whole - tables // 2) // 8
    assert kv_slot_bytes(LARGE, 8) * 8 == kv_slot_bytes(LARGE)
    assert kv_slot_bytes(SMALL, 2) == 2 * kv_slot_bytes(SMALL) // 3  # 3 KV heads, of which rank 0 has 2


def test_a_model_that_does_not_fit_one_rank_fits_two() -> None:
    wanted = Wanted(device="cpu", memory_bytes=50 * 10**9, context=4096)
    with pytest.raises(DoesNotFit):
        plan(LARGE, wanted)

    planned = plan(LARGE, replace(wanted, tensor_parallel=2))

    assert planned.parts.weights == weight_bytes(LARGE, "auto", device="cpu", tensor_parallel=2)
    assert planned.parts.total <= 50 * 10**9
