"""Configuration of a model, read from its `config.json`, and of the engine that runs it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.errors import ModelNotLoadable

DENSE_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
MODEL_TYPES = (*DENSE_MODEL_TYPES, "mixtral", "qwen3_moe", "deepseek_v3")  # models with a decoder in engine/models
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_REQUIRED = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"),
    "max_position_embeddings",
)
_REQUIRED_OF_DEEPSEEK = (
    *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts", "n_shared_experts"),
    *("num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group", "first_k_dense_replace"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """Layout of one position in a layer's cache: keys [num_heads, key_width] and values [num_heads, value_width].

    values_in_keys: a value is the first `value_width` elements of its key and is not stored separately.
    """

    num_heads: int
    key_width: int
    value_width: int
    values_in_keys: bool = False

    @property
    def num_elements(self) -> int:
        """Number of elements that a layer stores per position."""
        return self.num_heads * (self.key_width + (0 if self.values_in_keys else self.value_width))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Sizes of multi-head latent attention. Source: DeepSeek-V2, arXiv:2405.04434."""

    query_rank: int | None  # None: one matrix computes the queries from the hidden state
    rank: int  # size of the latent from which keys and values are computed
    nope_dim: int  # elements of a head's query and key without rotary embedding
    rope_dim: int  # elements with rotary embedding
    value_dim: int
    interleaved: bool  # rotary pairs are (0, 1), (2, 3), ...; otherwise i is paired with i + rope_dim / 2
    softmax_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Mixture of experts with group-limited routing by sigmoid scores and a correction bias."""

    num_experts: int
    num_shared: int
    num_experts_per_token: int
    num_groups: int
    num_groups_per_token: int
    intermediate_size: int
    num_dense_layers: int  # number of first layers, which have a dense MLP instead of experts
    normalized: bool  # whether the weights of a token's experts are divided by their sum
    scale: float  # factor on these weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig:
    """Mixture of experts of Mixtral and Qwen3-MoE, whose experts are chosen by the softmax of their scores."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    normalized: bool  # whether the weights of a token's experts are divided by their sum
    dense_layers: frozenset[int]  # layers with a dense MLP instead of experts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A causal decoder. DeepSeek models have `latent` and `experts`, Mixtral and Qwen3-MoE have `mixture`."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int  # at most the sliding window, so that attention is always full
    norm_eps: float
    tie_word_embeddings: bool
    attention_bias: bool  # whether query, key and value have biases
    output_bias: bool  # whether the attention's output has a bias
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: frozenset[int]
    dtype: torch.dtype  # dtype of the published weights
    latent: LatentConfig | None = None
    experts: ExpertsConfig | None = None
    mixture: MixtureConfig | None = None
    # number of KV heads in the cache of this rank (engine/tensor_parallel); None: all KV heads
    num_cached_kv_heads: int | None = None

    @property
    def cache_layout(self) -> CacheLayout:
        """The layout of the cache, which is the same for all layers."""
        if self.latent is None:
            num_heads = self.num_cached_kv_heads or self.num_kv_heads
            return CacheLayout(num_heads=num_heads, key_width=self.head_dim, value_width=self.head_dim)
        width = self.latent.rank + self.latent.rope_dim
        return CacheLayout(num_heads=1, key_width=width, value_width=self.latent.rank, values_in_keys=True)

    @classmethod
    def from_folder(cls, model_dir: Path) -> "ModelConfig":
        """Reads the folder's config.json.

        Raises: ModelNotLoadable: config.json is not readable, or engine/models has no decoder for the model.
        """
        return cls.from_values(read_config(model_dir), generation_eos(model_dir))

    @classmethod
    def from_values(cls, values: dict[str, Any], extra_eos: frozenset[int] = frozenset()) -> "ModelConfig":
        """`values`: config.json as published; `extra_eos`: end tokens from other files. Raises: ModelNotLoadable."""
        model_type = values.get("model_type")
        if model_type not in MODEL_TYPES:
            raise ModelNotLoadable(f"model_type must be one of {', '.join(MODEL_TYPES)}, got {model_type!r}")
        if values.get("hidden_act", "silu") != "silu":
            raise ModelNotLoadable(f"hidden_act must be silu, got {values['hidden_act']!r}")
        _check_sizes(values, _REQUIRED)
        deepseek = model_type == "deepseek_v3"
        latent = _latent(values) if deepseek else None
        num_heads = values["num_attention_heads"]
        dtype = values.get("dtype") or values.get("torch_dtype") or "bfloat16"
        head_dim = values.get("head_dim") or values["hidden_size"] // num_heads
        return cls(
            model_type=model_type,
            hidden_size=values["hidden_size"],
            intermediate_size=values["intermediate_size"],
            num_layers=values["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=num_heads if deepseek else values.get("num_key_value_heads") or num_heads,
            head_dim=head_dim if latent is None else latent.nope_dim + latent.rope_dim,
            vocab_size=values["vocab_size"],
            max_position_embeddings=min(values["max_position_embeddings"], _window(values)),
            norm_eps=values.get("rms_norm_eps", 1e-6),
            tie_word_embeddings=values.get("tie_word_embeddings", False),
            attention_bias=model_type == "qwen2" or values.get("attention_bias", False),
            output_bias=model_type != "qwen2" and values.get("attention_bias", False),
            mlp_bias=values.get("mlp_bias", False),
            qk_norm=model_type in ("qwen3", "qwen3_moe"),
            eos_token_ids=token_ids(values.get("eos_token_id")) | extra_eos,
            dtype=_DTYPES.get(dtype, torch.bfloat16),
            latent=latent,
            experts=_experts(values) if deepseek else None,
            mixture=_mixture(values),
        )


def read_config(model_dir: Path) -> dict[str, Any]:
    """Reads the folder's config.json. Raises: ModelNotLoadable."""
    return _read_object(model_dir / "config.json")


def generation_eos(model_dir: Path) -> frozenset[int]:
    """Reads eos_token_id of generation_config.json; chat models often name their end-of-turn token only there.

    Raises: ModelNotLoadable.
    """
    path = model_dir / "generation_config.json"
    return token_ids(_read_object(path).get("eos_token_id")) if path.exists() else frozenset()


def _read_object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelNotLoadable(f"{path.parent} has no readable {path.name}: {error}") from error
    if not isinstance(values, dict):
        raise ModelNotLoadable(f"{path} must hold an object, got a {type(values).__name__}")
    return values


def token_ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset([value])


def _check_sizes(values: Mapping[str, Any], names: tuple[str, ...]) -> None:
    missing = [name for name in names if values.get(name) is None]
    if missing:
        raise ModelNotLoadable(f"config.json of a {values['model_type']} must have {', '.join(missing)}")
    for name in names:
        if type(values[name]) is not int or values[name] < 0:
            raise ModelNotLoadable(f"{name} must be a whole number, got {values[name]!r}")


def _window(values: Mapping[str, Any]) -> float:
    """Returns the width of the sliding window; infinity if the model attends to all earlier positions."""
    windowed = values["model_type"] in ("mistral", "mixtral") or values.get("use_sliding_window")
    return (values.get("sliding_window") or math.inf) if windowed else math.inf


def _latent(values: Mapping[str, Any]) -> LatentConfig:
    _check_sizes(values, _REQUIRED_OF_DEEPSEEK)
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    mscale = 1.0  # YaRN's attention temperature, which DeepSeek applies to the scores
    if rope.get("mscale_all_dim") and rope.get("factor", 1.0) > 1.0:
        mscale = 0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1.0
    nope_dim, rope_dim = values["qk_nope_head_dim"], values["qk_rope_head_dim"]
    return LatentConfig(
        query_rank=values.get("q_lora_rank"),
        rank=values["kv_lora_rank"],
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        value_dim=values["v_head_dim"],
        interleaved=values.get("rope_interleave", True),
        softmax_scale=(nope_dim + rope_dim) ** -0.5 * mscale**2,
    )


def _experts(values: Mapping[str, Any]) -> ExpertsConfig:
    for name, supported in (("topk_method", "noaux_tc"), ("scoring_func", "sigmoid"), ("moe_layer_freq", 1)):
        if values.get(name, supported) != supported:
            raise ModelNotLoadable(f"{name} must be {supported}, got {values[name]!r}")
    return ExpertsConfig(
        num_experts=values["n_routed_experts"],
        num_shared=values["n_shared_experts"],
        num_experts_per_token=values["num_experts_per_tok"],
        num_groups=values["n_group"],
        num_groups_per_token=values["topk_group"],
        intermediate_size=values["moe_intermediate_size"],
        num_dense_layers=values["first_k_dense_replace"],
        normalized=values.get("norm_topk_prob", True),
        scale=values.get("routed_scaling_factor", 2.5),
    )


def _mixture(values: Mapping[str, Any]) -> MixtureConfig | None:
    model_type = values["model_type"]
    if model_type not in ("mixtral", "qwen3_moe"):
        return None
    num_experts = "num_experts" if "num_experts" in values else "num_local_experts"
    intermediate_size = "intermediate_size" if model_type == "mixtral" else "moe_intermediate_size"
    _check_sizes(values, (num_experts, "num_experts_per_tok", intermediate_size))
    if not 1 <= values["num_experts_per_tok"] <= values[num_experts]:
        raise ModelNotLoadable(f"num_experts_per_tok must be in 1..{values[num_experts]}")
    step, dense = values.get("decoder_sparse_step", 1), values.get("mlp_only_layers") or ()
    layers = range(values["num_hidden_layers"])
    return MixtureConfig(
        num_experts=values[num_experts],
        num_experts_per_token=values["num_experts_per_tok"],
        intermediate_size=values[intermediate_size],
        normalized=model_type == "mixtral" or values.get("norm_topk_prob", False),
        dense_layers=frozenset(layer for layer in layers if layer in dense or (layer + 1) % step),
    )


MAX_DRAFT_BUDGET = 256
# bf16: quantized weights are converted to bfloat16, and the model is computed in bfloat16.
# int8: the weights of attention, MLP and output head are int8 with one scale per output.
# fp8: like int8, but in 8-bit floating point; on CUDA only.
# int4: the weights of attention and MLP are int4 with one scale per output and group of 32 columns, and the weights of
#     the output head are int8; on CPUs only.
WEIGHT_FORMATS = ("auto", "bf16", "int8", "int4", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    max_batch_size: int = 16
    max_seq_len: int | None = None  # None: the model's maximum
    kv_cache_bytes: int = 1 << 30  # reserved at the start; the system provides physical memory as the cache fills
    prefill_chunk: int = 256  # chunks of a prompt end at multiples of this length, whatever other rows a pass has
    draft_budget: int | None = None  # nodes per sequence and step; None: decided from measured costs (engine/budget.py)
    dtype: str = "auto"  # auto: the dtype of the published weights
    weights: str = "auto"  # auto: the format of the checkpoint; for the other formats see WEIGHT_FORMATS
    kv_dtype: str = "auto"  # dtype of the KV cache. auto: the model's dtype. No other dtype is supported
    device: str = "auto"
    graph_decoding: str = "auto"  # auto: on CUDA only; on: on every device; off: nowhere
    tensor_parallel: int = 1  # number of processes that share the model (engine/tensor_parallel)

    def __post_init__(self) -> None:
        if self.graph_decoding not in ("auto", "on", "off"):
            raise ValueError(f"graph_decoding must be auto, on or off, got {self.graph_decoding!r}")
        if self.weights not in WEIGHT_FORMATS:
            raise ValueError(f"weights must be one of {', '.join(WEIGHT_FORMATS)}, got {self.weights!r}")
        if self.max_batch_size < 1:
            raise ValueError(f"max_batch_size must be at least 1, got {self.max_batch_size}")
        if self.tensor_parallel < 1:
            raise ValueError(f"tensor_parallel must be at least 1, got {self.tensor_parallel}")
        if self.draft_budget is not None and not 0 <= self.draft_budget <= MAX_DRAFT_BUDGET:
            raise ValueError(f"draft_budget must be in 0..{MAX_DRAFT_BUDGET}, got {self.draft_budget}")


def resolve_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def resolve_dtype(dtype: str, published: torch.dtype, *, weights: str = "auto") -> torch.dtype:
    """Returns the dtype in which the model is computed. `published`: the dtype of the published weights.

    Raises: ValueError: `dtype` is neither auto, float32 nor bfloat16, or contradicts `weights`.
    """
    if weights == "bf16":
        if dtype == "float32":
            raise ValueError("weights=bf16 computes in bfloat16, so dtype must be auto or bfloat16, got float32")
        return torch.bfloat16
    if dtype == "auto":
        return published
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of auto, {', '.join(_DTYPES)}, got {dtype!r}")
    return _DTYPES[dtype]
