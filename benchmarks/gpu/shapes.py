"""Models with the shapes of well-known models and random weights, for measurements of the time of a pass.

This time does not depend on the values of the weights. The weights are normally distributed and small enough that no
layer overflows. The answers of such a model are meaningless, and so is its acceptance of drafts.
"""

from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from engine.config import ModelConfig
from engine.models.dense import Decoder
from engine.models.rotary import tables_of
from engine.models.weights import build_weights

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# Values of each model's config.json.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_parameters": _LLAMA3_ROPE | {"factor": 32.0},
    },
    "llama-3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rope_parameters": _LLAMA3_ROPE | {"factor": 8.0},
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
    "tiny": {  # for dry runs; not a well-known model
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 96,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}


def transformers_config(name: str) -> PretrainedConfig:
    """Returns the configuration for transformers, without an end-of-sequence token, so that no answer ends early."""
    return AutoConfig.for_model(**SHAPES[name], bos_token_id=None, eos_token_id=None, pad_token_id=None)


class _RandomWeights:
    """Stands in for a file of weights: creates each tensor on the device when it is read."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._generator = torch.Generator(device).manual_seed(0)

    def tensor(self, name: str) -> Tensor:
        shape = self._shape(name)
        weight = torch.randn(shape, generator=self._generator, device=self._device, dtype=torch.float32)
        if len(shape) == 1:
            weight = 1.0 + 0.1 * weight  # a norm's weight
        else:
            weight *= 0.7 / float(shape[1]) ** 0.5
        return weight.to(self._dtype)

    def quantized(self, name: str) -> None:
        return None

    def _shape(self, name: str) -> tuple[int, ...]:
        config = self._config
        H, D, inner = config.hidden_size, config.head_dim, config.intermediate_size
        heads, kv_heads = config.num_heads * D, config.num_kv_heads * D
        shapes: dict[str, tuple[int, ...]] = {
            "q_proj": (heads, H),
            "k_proj": (kv_heads, H),
            "v_proj": (kv_heads, H),
            "o_proj": (H, heads),
            "gate_proj": (inner, H),
            "up_proj": (inner, H),
            "down_proj": (H, inner),
            "embed_tokens": (config.vocab_size, H),
            "lm_head": (config.vocab_size, H),
            "q_norm": (D,),
            "k_norm": (D,),
        }
        return shapes.get(name.split(".")[-2], (H,))


def make_model(name: str, dtype: torch.dtype, device: torch.device, *, max_positions: int) -> Decoder:
    """Makes a model with random weights. `max_positions` is the length of its rotary tables."""
    config = ModelConfig.from_values(SHAPES[name])
    with mock.patch("kernels.linear.library", return_value=None):  # weights have the GPU's layout on a CPU as well
        weights = build_weights(_RandomWeights(config, dtype, device), config, dtype, device)
    return Decoder(config, weights, tables_of(transformers_config(name), config.head_dim, max_positions), dtype)


def pass_bytes(config: ModelConfig, itemsize: int, *, context: int, batch: int) -> int:
    """Returns the bytes that a decoding pass must read: all weights except the embeddings, and keys and values of
    `batch` sequences with `context` tokens each.
    """
    H, D, inner = config.hidden_size, config.head_dim, config.intermediate_size
    qkv = (config.num_heads + 2 * config.num_kv_heads) * D * H
    layer = qkv + config.num_heads * D * H + 3 * inner * H
    weights = config.num_layers * layer + config.vocab_size * H
    cache = 2 * config.num_layers * config.num_kv_heads * D * context * batch
    return (weights + cache) * itemsize
