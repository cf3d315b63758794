"""Packs quantized weights in the format in which they are stored, if the device has a kernel for this format."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.quantized.weight import QuantizedWeight
from kernels.cpu.library import library
from kernels.linear import INT4_GROUP, LinearWeight, fits_int4, pack_grouped, pack_scaled


def pack_as_stored(
    parts: Sequence[QuantizedWeight],
    dtype: torch.dtype,
    device: torch.device,
    bias: Tensor | None,
    outputs: Sequence[slice],
) -> LinearWeight | None:
    """Stacks the `outputs` of each part into one weight.

    Returns None if no kernel supports the format of the parts. The caller must then convert them to `dtype`.
    """
    kept = [part.of_outputs(rows) for part, rows in zip(parts, outputs, strict=True)]
    grouped = device.type == "cpu" and library() is not None and all(_in_groups(part) for part in parts)
    if grouped and all(fits_int4(part.values, _grouped(part)) for part in parts):
        return pack_grouped(_values(kept), torch.cat([_grouped(part) for part in kept]), dtype, bias)
    if not all(part.scale_per_output for part in parts):
        return None
    int8 = all(part.values.dtype == torch.int8 and int(part.values.min()) > -128 for part in parts)
    float8 = device.type == "cuda" and all(part.values.dtype == torch.float8_e4m3fn for part in parts)
    if not (int8 or float8) or parts[0].shape[1] % 2:
        return None
    scales = torch.cat([part.scales[:, 0] for part in kept])
    return pack_scaled(_values(kept).to(device), scales.to(device), dtype, bias)


def _values(parts: Sequence[QuantizedWeight]) -> Tensor:
    return torch.cat([part.values for part in parts])


def _grouped(part: QuantizedWeight) -> Tensor:
    """Returns the scales, repeated to one scale for each 32 columns (the groups of the int4 kernel)."""
    return part.scales.repeat_interleave(part.group_size // INT4_GROUP, 1)


def _in_groups(part: QuantizedWeight) -> bool:
    if part.values.dtype != torch.int8 or part.groups is not None:
        return False
    return part.group_size % INT4_GROUP == 0 and part.shape[1] % part.group_size == 0
