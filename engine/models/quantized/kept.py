"""Keeps quantized weights in their format if a kernel multiplies with it on this device; others are widened."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.quantized.weight import QuantizedWeight
from kernels.linear import LinearWeight, pack_scaled


def pack_as_stored(
    parts: Sequence[QuantizedWeight], dtype: torch.dtype, device: torch.device, bias: Tensor | None
) -> LinearWeight | None:
    """Stacks the outputs of all parts. Returns None if no kernel has their format, so that they must be widened.

    int8 with one scale per output has kernels on CPUs and on CUDA, float8 with one scale per output on CUDA.
    """
    values = [part.values for part in parts]
    if not all(part.scale_per_output for part in parts):
        return None
    int8 = all(value.dtype == torch.int8 and int(value.min()) > -128 for value in values)
    float8 = device.type == "cuda" and all(value.dtype == torch.float8_e4m3fn for value in values)
    if not (int8 or float8) or values[0].shape[1] % 2:
        return None
    scales = torch.cat([part.scales[:, 0] for part in parts])
    return pack_scaled(torch.cat(values).to(device), scales.to(device), dtype, bias)
