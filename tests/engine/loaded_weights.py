"""Counts the bytes of the weights that a loaded model keeps in memory."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from engine.models.base import Model
from engine.models.transformers_model import TransformersModel
from engine.tensor_parallel.leader import ShardedModel
from kernels.experts import Experts
from kernels.linear import LinearWeight


def loaded_bytes(model: Model) -> int:
    """Returns the bytes of the weight matrices and their scales. A model that is cut over several ranks counts rank 0.

    Norms and biases are counted only if transformers computes the model.
    """
    weights = model._shard.weights if isinstance(model, ShardedModel) else model.weights
    tensors = {tensor.data_ptr(): tensor for tensor in _tensors(weights)}
    if isinstance(model, TransformersModel):
        for module in (model._decoder, model._head):
            tensors |= {tensor.data_ptr(): tensor for tensor in _tensors_of_modules(module)}
    return sum(tensor.nbytes for tensor in tensors.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, LinearWeight):
        yield from (tensor for tensor in (value.data, value.scales, value.group_scales) if tensor is not None)
    elif isinstance(value, Tensor):
        if value.dim() > 1:
            yield value
    elif isinstance(value, Experts):
        yield from _tensors(value.experts)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))


def _tensors_of_modules(module: nn.Module) -> Iterator[Tensor]:
    for part in module.modules():
        yield from (parameter for parameter in part._parameters.values() if parameter is not None)
        yield from _tensors([getattr(part, "_weight", None), getattr(part, "packed", None)])
