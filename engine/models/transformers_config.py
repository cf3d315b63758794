"""Decides from the configuration which models of `transformers` are accepted, and how long their context can be.

A configuration is refused if it refers to code in the model folder, or if the engine could not compute the model
exactly. Other properties are tested on the loaded model (engine/models/transformers_proof.py). Models without a decoder
of their own in engine/models are called foreign.
"""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine.config import ModelConfig, generation_eos, read_config, token_ids
from engine.errors import ModelNotLoadable

_FULL, _SLIDING = "full_attention", "sliding_attention"
_WINDOWED = (_SLIDING, "chunked_attention")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional")  # angles do not depend on the text's length
_ROPE_TYPES_UP_TO_A_LENGTH = ("dynamic", "longrope")  # angles change if a text exceeds the original maximum length


def read_foreign_config(model_dir: Path) -> PretrainedConfig:
    """Reads config.json.

    Raises: ModelNotLoadable: the model is not a causal decoder of transformers, or config.json refers to code.
    """
    values = read_config(model_dir)
    model_type = values.get("model_type")
    if "auto_map" in values:
        raise ModelNotLoadable("config.json refers to code in the folder (auto_map), which is never run")
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelNotLoadable(f"model_type must be one of transformers' causal models, got {model_type!r}")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(model_dir, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # configurations of transformers raise errors of any type
        raise ModelNotLoadable(f"config.json of a {model_type} can't be read: {error}") from error
    if config.get_text_config() is not config or getattr(config, "is_encoder_decoder", False):
        raise ModelNotLoadable(f"a {model_type} has other parts than a text decoder, which is not supported")
    return config


def num_windowed_layers(config: PretrainedConfig) -> int | None:
    """Returns how many layers have a sliding window according to the configuration.

    Returns None if the configuration sets a window but does not say for which layers.
    """
    kinds: list[str] | None = getattr(config, "layer_types", None)
    if kinds:
        return kinds.count(_SLIDING)
    return 0 if getattr(config, "sliding_window", None) is None else None


def context_limit(config: PretrainedConfig, *, within_windows: bool = False) -> int:
    """Returns the maximum length of a text with the original position encoding and within one attention chunk.

    within_windows: the text must also fit into the sliding windows, so that every token attends to all earlier tokens.

    Raises: ModelNotLoadable: the config has no maximum length, or layers store other state than keys and values.
    """
    longest = getattr(config, "max_position_embeddings", None)
    if not isinstance(longest, int):
        raise ModelNotLoadable(f"config.json of a {config.model_type} must have max_position_embeddings")
    kinds = set(getattr(config, "layer_types", None) or ())
    if foreign := kinds - {_FULL, *_WINDOWED}:
        raise ModelNotLoadable(f"layers of type {', '.join(sorted(foreign))} are not supported")
    limit: float = longest
    if not kinds or kinds & set(_WINDOWED):
        names = ("attention_chunk_size", *(["sliding_window"] if within_windows else []))
        sizes = (getattr(config, name, None) for name in names)
        limit = min(limit, *(size or math.inf for size in sizes))
    for rope in _rope_parameters(config):
        limit = min(limit, _rope_limit(rope, longest))
    return int(limit)


def describe(
    config: PretrainedConfig, model_dir: Path, *, num_kv_heads: int, head_dim: int, embedding: torch.Tensor
) -> ModelConfig:
    """Returns the engine's configuration of the model. Biases and head norms are off: the model itself applies them.

    num_kv_heads, head_dim: the actual shape of the keys.
    """
    eps = getattr(config, "rms_norm_eps", None) or getattr(config, "layer_norm_eps", None) or 1e-5
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return ModelConfig(
        model_type=config.model_type,
        hidden_size=embedding.shape[1],
        intermediate_size=inner,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        max_position_embeddings=context_limit(config),
        norm_eps=eps,
        tie_word_embeddings=bool(config.tie_word_embeddings),
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        eos_token_ids=token_ids(config.eos_token_id) | generation_eos(model_dir),
        dtype=published_dtype(config),
    )


def published_dtype(config: PretrainedConfig) -> torch.dtype:
    """Returns the dtype in which the engine loads the weights: float32 if that is the config's dtype, else bfloat16."""
    return torch.float32 if config.dtype == torch.float32 else torch.bfloat16


def _rope_parameters(config: PretrainedConfig) -> list[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        return [parameters]
    return [kind for kind in parameters.values() if isinstance(kind, dict)]  # one for each layer type


def _rope_limit(rope: dict[str, Any], longest: int) -> int:
    rope_type = rope.get("rope_type", "default")
    if rope_type in _ROPE_TYPES:
        return longest
    if rope_type in _ROPE_TYPES_UP_TO_A_LENGTH:
        return int(rope.get("original_max_position_embeddings") or longest)
    raise ModelNotLoadable(f"rope_type must be one of {', '.join(_ROPE_TYPES)}, got {rope_type!r}")
