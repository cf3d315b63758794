"""The families of models and the formats of weights that `python -m benchmarks.models` checks.

A case writes two folders: one that the engine loads, and one with the same weights in float32 for transformers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.linear import INT4_GROUP
from tests.engine.models.quantized.checkpoints import make_mxfp4, make_quantized
from tests.tiny_model import make_tiny_model

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_LINEAR = (*_ATTENTION, "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model type of transformers.

    values: values of its configuration that differ from those of tests.tiny_model.
    adapted: the modules to which a LoRA adapter applies; none if the engine serves no adapters for this family.
    has_decoder: whether the engine has a decoder of its own, so that it can quantize the weights.
    """

    model_type: str
    values: dict[str, Any] = field(default_factory=dict)
    adapted: tuple[str, ...] = _LINEAR
    has_decoder: bool = False


FAMILIES = (
    *(Family(model_type=name, has_decoder=True) for name in ("llama", "mistral", "qwen2", "qwen3")),
    Family(
        model_type="mixtral",
        values={"num_local_experts": 8, "num_experts_per_tok": 2},
        adapted=_ATTENTION,
        has_decoder=True,
    ),
    Family(
        model_type="qwen3_moe",
        values={"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 96},
        adapted=_ATTENTION,
        has_decoder=True,
    ),
    Family(model_type="deepseek_v3", adapted=()),
    Family(
        model_type="gemma3_text", values={"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}
    ),
    Family(
        model_type="gpt_oss",
        values={"sliding_window": 20, "num_local_experts": 4, "num_experts_per_tok": 2},
        adapted=_ATTENTION,
    ),
    Family(model_type="glm4", adapted=(*_ATTENTION, "gate_up_proj", "down_proj")),
    *(Family(model_type=name) for name in ("smollm3", "seed_oss", "ernie4_5", "olmo2")),
    Family(model_type="phi3", adapted=("qkv_proj", "o_proj", "gate_up_proj", "down_proj")),
)
CHECKPOINTS = ("fp8 blocks", "fp8 per channel", "compressed int8", "compressed int4", "awq", "gptq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model in one format. weights: as in EngineConfig.

    write: writes the model below the given folder, and returns the engine's folder and the one for transformers.
    """

    family: Family
    format: str
    weights: str
    write: Callable[[Path], tuple[Path, Path]]


def cases() -> Iterator[Case]:
    for family in FAMILIES:
        yield _case(family, "as published", "auto", lambda name, weight: weight)
        if family.has_decoder:
            yield _case(family, "int8", "int8", _int8_values)
            yield _case(family, "int4", "int4", _int4_values)
    qwen, gpt_oss = (next(family for family in FAMILIES if family.model_type == name) for name in ("qwen2", "gpt_oss"))
    for name in CHECKPOINTS:

        def write(folder: Path, name: str = name) -> tuple[Path, Path]:
            return make_quantized(folder, name, "qwen2")

        yield Case(family=qwen, format=name, weights="auto", write=write)
    yield Case(
        family=gpt_oss, format="mxfp4", weights="auto", write=lambda folder: make_mxfp4(folder, **gpt_oss.values)
    )


def _case(family: Family, form: str, weights: str, values: Callable[[str, Tensor], Tensor]) -> Case:
    def write(folder: Path) -> tuple[Path, Path]:
        path = make_tiny_model(folder, family.model_type, **family.values) / "model.safetensors"
        save_file({name: values(name, tensor) for name, tensor in load_file(path).items()}, path)
        return folder, folder

    return Case(family=family, format=form, weights=weights, write=write)


def _is_quantized(name: str) -> bool:
    return name.endswith(("proj.weight", "w1.weight", "w2.weight", "w3.weight", "lm_head.weight"))


def _int8_values(name: str, weight: Tensor) -> Tensor:
    """Rounds a weight to numbers that int8 with one scale per output represents, so that quantizing changes nothing."""
    if not _is_quantized(name):
        return weight
    scales = weight.abs().amax(1, keepdim=True) / 127
    return torch.round(weight / scales) * scales


def _int4_values(name: str, weight: Tensor) -> Tensor:
    """Like `_int8_values`, for int4 in groups of 32 columns, in which the largest number is -8 times the scale."""
    if not _is_quantized(name) or name.startswith("lm_head"):
        return _int8_values(name, weight)  # the head has int8 weights
    groups = weight.unflatten(1, (-1, INT4_GROUP))
    extremes = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    scales = (extremes / -8).half().float()
    values = torch.round(groups / scales).clamp(-8, 7)
    return torch.flatten(values * scales, 1)
