"""Plans of an engine's memory: which models fit, and that no plan exceeds the given memory."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.model_sizes import ModelSizes, UnknownSizes
from workers.planning import DoesNotFit, Plan, Wanted, kv_slot_bytes, mtp_bytes, plan, weight_bytes
from workers.stored_weights import StoredTensor

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


def test_a_32b_model_in_bf16_has_room_for_long_reasoning_traces_on_one_80_gb_gpu() -> None:
    planned = plan(LARGE, Wanted(device="cuda", memory_bytes=GPU_80_GB))

    assert planned.context > 28_000
    assert planned.num_sequences(4096) == 7


def test_a_32b_model_in_int8_has_room_for_its_whole_context_on_one_80_gb_gpu() -> None:
    planned = plan(LARGE, Wanted(device="cuda", memory_bytes=GPU_80_GB, weights="int8"))

    assert planned.context == 131_072
    assert planned.num_sequences(8192) == 16


def _with_float8_layers(**changes: Any) -> ModelSizes:
    """Returns the sizes of a model whose layers are in float8 with a scale per output, as in compressed-tensors."""
    tensors = {"weight": ("F8_E4M3", (64, 32)), "weight_scale": ("BF16", (64, 1)), **changes}
    stored = {
        f"model.layers.0.{module}.{name}": StoredTensor(dtype=dtype, shape=shape, file=Path("/"), start=0, end=0)
        for module in ("self_attn.q_proj", "mlp.down_proj")
        for name, (dtype, shape) in tensors.items()
    }
    stored["lm_head.weight"] = StoredTensor(dtype="BF16", shape=(64, 32), file=Path("/"), start=0, end=0)
    return ModelSizes.of({**QWEN_32B, "quantization_config": {"quant_method": "compressed-tensors"}}, stored)


def test_layers_stored_in_float8_are_planned_in_float8_only_on_cuda() -> None:
    sizes = _with_float8_layers()
    layers = sum(product.outputs * product.inputs * product.num_weights for product in LARGE.products())
    scales = 4 * sum(product.outputs * product.num_weights for product in LARGE.products())

    saved = weight_bytes(LARGE, "auto", device="cuda") - weight_bytes(sizes, "auto", device="cuda")

    assert saved == layers - scales
    assert weight_bytes(sizes, "auto", device="cpu") == weight_bytes(LARGE, "auto", device="cpu")


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_scale": ("BF16", (2, 1))},
        {"weight": ("I16", (64, 32))},
        {"weight_scale": ("BF16", (64, 1)), "weight": ("BF16", (64, 32))},
        {"other": ("BF16", (64, 1)), "weight_scale": ("F16", (1, 32))},
    ],
    ids=["blocks", "another dtype", "not quantized", "scales of the inputs"],
)
def test_checkpoints_that_the_engine_may_convert_are_planned_in_the_dtype_of_the_model(changes: dict[str, Any]) -> None:
    sizes = _with_float8_layers(**changes)

    assert weight_bytes(sizes, "auto", device="cuda") == weight_bytes(LARGE, "auto", device="cuda")


@pytest.mark.parametrize("described", [None, [], {"config_groups": {"g": None}}, {"config_groups": 1, "bits": "many"}])
def test_weights_with_an_inconsistent_quantization_config_are_planned_in_the_dtype_of_the_model(described: Any) -> None:
    names = {"weight_packed": "I32", "weight_scale": "F16"}
    stored = {
        f"model.layers.0.mlp.down_proj.{name}": StoredTensor(dtype=dtype, shape=(64, 2), file=Path("/"), start=0, end=0)
        for name, dtype in names.items()
    }

    assert ModelSizes.of({**QWEN_32B, "quantization_config": described}, stored).kept_format is None


def test_sizes_that_an_earlier_release_has_stored_are_read() -> None:
    earlier = asdict(LARGE) | {"has_float8_layers": True}
    for name in ("kept_format", "experts", "latent", "num_parameters"):
        del earlier[name]

    assert ModelSizes.from_json(earlier) == replace(LARGE, kept_format="fp8")


MIXTRAL_8X7B: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
}
MIXTRAL, DEEPSEEK = ModelSizes.of(MIXTRAL_8X7B), ModelSizes.of(DEEPSEEK_V3)


def test_mixture_of_experts_models_are_planned_with_the_published_numbers_of_weights() -> None:
    """Norms and biases are left out of the plan; neither model was run."""
    assert weight_bytes(MIXTRAL, "auto", device="cuda") == pytest.approx(2 * 46.70e9, rel=0.001)
    assert weight_bytes(DEEPSEEK, "auto", device="cuda") == pytest.approx(2 * 671.03e9, rel=0.001)
    assert mtp_bytes(DEEPSEEK, "cuda") == pytest.approx(2 * 11.6e9, rel=0.01)


def test_a_position_of_latent_attention_takes_one_latent_per_layer() -> None:
    assert kv_slot_bytes(DEEPSEEK) == kv_slot_bytes(DEEPSEEK, 8) == 61 * (512 + 64) * 2
    assert kv_slot_bytes(MIXTRAL) == 2 * 32 * 8 * 128 * 2


def test_mixtral_fits_one_80_gb_gpu_in_int8_but_not_in_bf16() -> None:
    wanted = Wanted(device="cuda", memory_bytes=GPU_80_GB)
    with pytest.raises(DoesNotFit, match=r"weights 93\.4\d GB"):
        plan(MIXTRAL, wanted)

    assert plan(MIXTRAL, replace(wanted, weights="int8")).num_sequences(8192) == 16


def test_the_mtp_module_is_planned_with_its_cache() -> None:
    wanted = Wanted(device="cuda", memory_bytes=2 * 10**12, context=4096)
    alone, drafted = (plan(DEEPSEEK, replace(wanted, has_mtp_module=has_module)) for has_module in (False, True))

    assert drafted.parts.speculator == mtp_bytes(DEEPSEEK, "cuda")
    assert drafted.parts.kv_cache * 61 == alone.parts.kv_cache * 62
    assert plan(LARGE, replace(wanted, has_mtp_module=True)).parts.speculator == 0


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
    wanted=st.builds(
        Wanted,
        memory_bytes=st.none() | st.integers(10**8, 4 * 10**12),
        context=st.none() | st.integers(1, 200_000),
        concurrency=st.integers(1, 1_000),
        draft_nodes=st.integers(0, 256),
        speculator_bytes=st.integers(0, 10**9),
        drafter_slot_bytes=st.integers(0, 10**6),
        adapter_bytes=st.integers(0, 10**9),
        weights=st.sampled_from(["auto", "bf16", "int8", "int4"]),
        device=st.sampled_from(["cpu", "cuda"]),
        tensor_parallel=st.sampled_from([1, 2, 8]),
        num_engines=st.sampled_from([1, 2]),
        has_mtp_module=st.booleans(),
    ),
    sizes=st.sampled_from([SMALL, LARGE, MIXTRAL, DEEPSEEK, replace(SMALL, num_parameters=10**9)]),
    more_memory=st.integers(0, 10**10),
    factor=st.integers(2, 10),
)
def test_a_plan_fits_its_memory_and_more_memory_gives_more_positions(
    sizes: ModelSizes, wanted: Wanted, more_memory: int, factor: int
) -> None:
    planned = _plan_or_refusal(sizes, wanted)
    more_sequences = _plan_or_refusal(sizes, replace(wanted, concurrency=factor * wanted.concurrency))
    richer = _plan_or_refusal(sizes, replace(wanted, memory_bytes=(wanted.memory_bytes or 0) + more_memory))
    if isinstance(planned, DoesNotFit):
        parts, message = asdict(planned.parts), str(planned)
        assert wanted.memory_bytes is None or sum(parts.values()) > wanted.memory_bytes
        assert all(f"{name.replace('_', ' ')} {value / 1e9:.2f} GB" in message for name, value in parts.items())
        assert isinstance(more_sequences, DoesNotFit)
        return
    assert planned.parts.total == sum(asdict(planned.parts).values())
    assert wanted.memory_bytes is None or planned.parts.total <= wanted.memory_bytes
    assert planned.num_sequences(planned.context) >= 1
    assert planned.parts.kv_cache % planned.kv_slots == 0
    assert wanted.context is None or planned.context == min(wanted.context, sizes.max_positions)
    if isinstance(more_sequences, Plan):
        assert more_sequences.parts.work_space >= planned.parts.work_space
        assert wanted.memory_bytes is not None or more_sequences.kv_slots >= planned.kv_slots
    if wanted.memory_bytes is not None:
        assert isinstance(richer, Plan)
        assert richer.kv_slots >= planned.kv_slots
        assert richer.context >= planned.context
    shorter = _plan_or_refusal(sizes, replace(wanted, context=max(1, planned.context // factor)))
    assert isinstance(shorter, Plan)
    assert shorter.parts.work_space <= planned.parts.work_space
    assert shorter.num_sequences(shorter.context) >= planned.num_sequences(planned.context)


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


@pytest.mark.parametrize("model_type", ["gpt_neox", "gemma3_text", None])
def test_models_of_transformers_are_not_planned_without_their_files(model_type: str | None) -> None:
    with pytest.raises(UnknownSizes, match=f"a model of type {model_type!r} cannot be planned without its files"):
        ModelSizes.of({**SMOLLM2, "model_type": model_type})


@pytest.mark.parametrize("name", ["num_local_experts", "num_experts_per_tok"])
def test_a_mixture_of_experts_without_a_needed_size_is_refused(name: str) -> None:
    with pytest.raises(UnknownSizes, match=f"positive whole number {name}"):
        ModelSizes.of({**MIXTRAL_8X7B, name: None})


def test_a_sliding_window_limits_the_context() -> None:
    assert ModelSizes.of({**SMOLLM2, "model_type": "mistral", "sliding_window": 4096}).max_positions == 4096


def test_the_weights_and_the_kv_cache_of_a_rank_shrink_with_the_number_of_ranks() -> None:
    whole, half, eighth = (weight_bytes(LARGE, "auto", device="cpu", tensor_parallel=degree) for degree in (1, 2, 8))
    tables = LARGE.table_bytes  # a process without ranks also keeps an unpacked LM head and the whole embedding
    assert half == (whole - tables // 2) // 2
    assert eighth == (whole - tables // 2) // 8
    assert kv_slot_bytes(LARGE, 8) * 8 == kv_slot_bytes(LARGE)
    assert kv_slot_bytes(SMALL, 2) == 2 * kv_slot_bytes(SMALL) // 3  # 3 KV heads, of which rank 0 has 2


def test_a_model_that_does_not_fit_one_rank_fits_two_ranks() -> None:
    wanted = Wanted(device="cpu", memory_bytes=50 * 10**9, context=4096)
    with pytest.raises(DoesNotFit):
        plan(LARGE, wanted)

    planned = plan(LARGE, replace(wanted, tensor_parallel=2))

    assert planned.parts.weights == weight_bytes(LARGE, "auto", device="cpu", tensor_parallel=2)
    assert planned.parts.total <= 50 * 10**9


@pytest.mark.parametrize("value", [[64, 128], "many", None, {}])
def test_an_intermediate_size_that_is_not_an_integer_is_replaced_by_four_times_the_hidden_size(value: Any) -> None:
    config = {**SMOLLM2, "model_type": "gpt_neox", "intermediate_size": value, "moe_intermediate_size": value}

    assert ModelSizes.of(config, {}).intermediate_size == 4 * 576
