"""What the engine needs to know of a model, read from its `config.json`, and how to run it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.errors import ModelNotLoadable

MODEL_TYPES = ("llama", "qwen2", "qwen3")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """What each layer keeps of one position: keys [num_heads, key_width] and values [num_heads, value_width].

    values_in_keys: a value is the first `value_width` numbers of its key, so it takes no memory of its own.
    """

    num_heads: int
    key_width: int
    value_width: int
    values_in_keys: bool = False

    @property
    def numbers(self) -> int:
        """How many numbers a layer keeps of a position."""
        return self.num_heads * (self.key_width + (0 if self.values_in_keys else self.value_width))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A dense decoder of the Llama family."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    tie_word_embeddings: bool
    attention_bias: bool  # on query, key and value
    output_bias: bool  # on the attention's output
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: frozenset[int]
    dtype: torch.dtype  # of the weights as published

    @property
    def cache_layout(self) -> CacheLayout:
        """All layers' alike."""
        return CacheLayout(num_heads=self.num_kv_heads, key_width=self.head_dim, value_width=self.head_dim)

    @classmethod
    def from_folder(cls, model_dir: Path) -> "ModelConfig":
        """Raises: ModelNotLoadable: no readable config.json, or a model this engine does not serve."""
        try:
            values = json.loads((model_dir / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise ModelNotLoadable(f"{model_dir} has no readable config.json: {error}") from error
        return cls.from_values(values, _generation_eos(model_dir))

    @classmethod
    def from_values(cls, values: dict[str, Any], generation_eos: frozenset[int] = frozenset()) -> "ModelConfig":
        """`values`: config.json as published. Raises: ModelNotLoadable."""
        model_type = values.get("model_type")
        if model_type not in MODEL_TYPES:
            raise ModelNotLoadable(f"model_type must be one of {', '.join(MODEL_TYPES)}, got {model_type!r}")
        if values.get("hidden_act", "silu") != "silu":
            raise ModelNotLoadable(f"hidden_act must be silu, got {values['hidden_act']!r}")
        if values.get("use_sliding_window"):
            raise ModelNotLoadable("sliding-window attention is not supported")
        num_heads = values["num_attention_heads"]
        dtype = values.get("dtype") or values.get("torch_dtype") or "bfloat16"
        return cls(
            model_type=model_type,
            hidden_size=values["hidden_size"],
            intermediate_size=values["intermediate_size"],
            num_layers=values["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=values.get("num_key_value_heads") or num_heads,
            head_dim=values.get("head_dim") or values["hidden_size"] // num_heads,
            vocab_size=values["vocab_size"],
            max_position_embeddings=values["max_position_embeddings"],
            norm_eps=values.get("rms_norm_eps", 1e-6),
            tie_word_embeddings=values.get("tie_word_embeddings", False),
            attention_bias=model_type == "qwen2" or values.get("attention_bias", False),
            output_bias=model_type != "qwen2" and values.get("attention_bias", False),
            mlp_bias=values.get("mlp_bias", False),
            qk_norm=model_type == "qwen3",
            eos_token_ids=_token_ids(values.get("eos_token_id")) | generation_eos,
            dtype=_DTYPES.get(dtype, torch.bfloat16),
        )


def _token_ids(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset([value])


def _generation_eos(model_dir: Path) -> frozenset[int]:
    """Chat models often name their end-of-turn token in generation_config.json alone."""
    path = model_dir / "generation_config.json"
    return _token_ids(json.loads(path.read_text()).get("eos_token_id")) if path.exists() else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    max_batch_size: int = 16
    max_seq_len: int | None = None  # None: the model's own
    kv_cache_bytes: int = 1 << 30  # reserved; touched as it fills
    prefill_chunk: int = 256  # chunks end at multiples of this position, never where speculation would have it
    draft_budget: int | None = None  # nodes drafted per sequence and step; None: what the measured costs suggest
    dtype: str = "auto"  # auto: as published
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ValueError(f"max_batch_size must be at least 1, got {self.max_batch_size}")
        if self.draft_budget is not None and not 0 <= self.draft_budget <= 64:
            raise ValueError(f"draft_budget must be in 0..64, got {self.draft_budget}")


def resolve_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def resolve_dtype(dtype: str, config: ModelConfig) -> torch.dtype:
    """Raises: ValueError: neither auto, float32 nor bfloat16."""
    if dtype == "auto":
        return config.dtype
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of auto, {', '.join(_DTYPES)}, got {dtype!r}")
    return _DTYPES[dtype]
