"""Computes the rotary cosine and sine tables of a model, with the rotary scaling of its configuration."""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import ModelNotLoadable

_SCALINGS = ("linear", "llama3", "yarn")  # rope types whose frequencies do not depend on the sequence's length


def rotary_tables(model_dir: Path, head_dim: int, max_positions: int) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines [max_positions, head_dim / 2] float32.

    Raises: ModelNotLoadable: the rotary scaling depends on the sequence's length.
    """
    # read with transformers, because it converts old versions of config.json
    return tables_of(AutoConfig.from_pretrained(model_dir, trust_remote_code=False), head_dim, max_positions)


def tables_of(config: PretrainedConfig, head_dim: int, max_positions: int) -> tuple[Tensor, Tensor]:
    """Like `rotary_tables`, but takes a configuration of transformers."""
    parameters = config.rope_parameters
    rope_type = parameters["rope_type"]
    if rope_type == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies, scaling = 1.0 / parameters["rope_theta"] ** exponents, 1.0
    elif rope_type in _SCALINGS:
        frequencies, scaling = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"))
    else:
        raise ModelNotLoadable(f"rope_type must be default, {', '.join(_SCALINGS)}, got {rope_type!r}")
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)  # [max_positions, head_dim / 2]
    return angles.cos() * scaling, angles.sin() * scaling
