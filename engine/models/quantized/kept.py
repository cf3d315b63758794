"""Keeps quantized weights in their format if a kernel multiplies with it on this device; others are widened."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.quantized.weight import QuantizedWeight
from kernels.cpu.library import library
from kernels.linear import INT4_GROUP, LinearWeight, fits_int4, pack_grouped, pack_scaled


def pack_as_stored(
    parts: Sequence[QuantizedWeight], dtype: torch.dtype, device: torch.device, bias: Tensor | None
) -> LinearWeight | None:
    """Stacks the outputs of all parts. Returns None if no kernel has their format, so that they must be widened.

    int8 with one scale per output has kernels on CPUs and on CUDA, float8 with one scale per output on CUDA, and int4
    in groups of a multiple of 32 columns on CPUs.
    """
    values = [part.values for part in parts]
    if device.type == "cpu" and library() is not None and all(_in_groups(part) for part in parts):
        grouped = torch.cat([part.scales.repeat_interleave(part.group_size // INT4_GROUP, 1) for part in parts])
        if fits_int4(torch.cat(values), grouped):
            return pack_grouped(torch.cat(values), grouped, dtype, bias)
    if not all(part.scale_per_output for part in parts):
        return None
    int8 = all(value.dtype == torch.int8 and int(value.min()) > -128 for value in values)
    float8 = device.type == "cuda" and all(value.dtype == torch.float8_e4m3fn for value in values)
    if not (int8 or float8) or values[0].shape[1] % 2:
        return None
    scales = torch.cat([part.scales[:, 0] for part in parts])
    return pack_scaled(torch.cat(values).to(device), scales.to(device), dtype, bias)


def _in_groups(part: QuantizedWeight) -> bool:
    if part.values.dtype != torch.int8 or part.groups is not None:
        return False
    return part.group_size % INT4_GROUP == 0 and part.shape[1] % part.group_size == 0
