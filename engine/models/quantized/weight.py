"""A weight as a quantized checkpoint stores it, after unpacking.

    weight[n, k] = values[n, k] scales[n, g]        g is the group of column k

Zero points are already subtracted from `values`. Shape letters: N outputs, K inputs (columns), G groups of columns.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from engine.errors import QuantizedWeightsInvalid, ScalesMissing

_ROWS = 1024  # rows that are widened at once, which bounds the memory for intermediate results


class Tensors(Protocol):
    """The tensors of a checkpoint under their stored names."""

    @property
    def names(self) -> Collection[str]: ...

    def tensor(self, name: str) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    values: Tensor  # [N, K] int8, int16 or float8_e4m3fn
    scales: Tensor  # [N, G] float32
    groups: Tensor | None  # [K] int64, the group of each column; None: consecutive groups of `group_size` columns
    group_size: int

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def scale_per_output(self) -> bool:
        return self.scales.shape[1] == 1

    def of_outputs(self, outputs: slice) -> "QuantizedWeight":
        return replace(self, values=self.values[outputs], scales=self.scales[outputs])

    def widened(self) -> Tensor:
        """Returns the weight [N, K] in float32."""
        groups = torch.arange(self.shape[1]) // self.group_size if self.groups is None else self.groups
        out = torch.empty(self.shape)
        for start in range(0, self.shape[0], _ROWS):
            part = slice(start, start + _ROWS)
            torch.mul(self.values[part].float(), self.scales[part][:, groups], out=out[part])
        return out


def read_scales(tensors: Tensors, module: str, suffixes: Sequence[str]) -> Tensor:
    """Returns the first of the tensors `module.suffix` that exists, in float32.

    Raises: ScalesMissing: none exists. QuantizedWeightsInvalid: a scale is not a finite number.
    """
    for name in (f"{module}.{suffix}" for suffix in suffixes):
        if name in tensors.names:
            scales = tensors.tensor(name).float()
            if not scales.isfinite().all():
                raise QuantizedWeightsInvalid(f"{name} must hold finite numbers; copy or quantize the model again")
            return scales
    raise ScalesMissing(
        f"{module} is quantized, but the folder holds no {' or '.join(f'{module}.{suffix}' for suffix in suffixes)}: "
        "the upload is incomplete, or the model was not saved by the tool that quantized it"
    )


def check_shape(name: str, tensor: Tensor, *shape: int) -> Tensor:
    """Returns the tensor. Raises: QuantizedWeightsInvalid: it has another shape."""
    if tuple(tensor.shape) != shape:
        raise QuantizedWeightsInvalid(
            f"{name} must be {list(shape)}, got {list(tensor.shape)}: config.json describes another quantization"
        )
    return tensor


def unpack(packed: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """Splits each int32 of the last dimension into 32 / bits unsigned numbers, the lowest bits first.

    order: order[i] is the place of number i of an int32 among the unpacked numbers of this int32, where number 0 has
        the lowest bits; None: the place of number i is i.

    Returns int16.
    """
    count = 32 // bits
    out = torch.empty(*packed.shape[:-1], packed.shape[-1] * count, dtype=torch.int16, device=packed.device)
    for index, place in enumerate(order or range(count)):
        out[..., place::count] = (packed >> (bits * index)) & (2**bits - 1)
    return out


def check_packed(name: str, tensor: Tensor) -> Tensor:
    """Returns the tensor. Raises: QuantizedWeightsInvalid: it is not an int32 matrix."""
    if tensor.dtype != torch.int32 or tensor.dim() != 2:
        raise QuantizedWeightsInvalid(f"{name} must be an int32 matrix, got {tensor.dtype} {list(tensor.shape)}")
    return tensor


def narrowed(values: Tensor) -> Tensor:
    """Returns int16 values as int8 if all of them fit."""
    low, high = values.aminmax()
    return values.to(torch.int8) if int(low) >= -128 and int(high) <= 127 else values


def num_groups(columns: int, group_size: int) -> int:
    return -(-columns // group_size)
