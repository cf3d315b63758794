"""Linear layer whose rows do not depend on how many rows there are.

    out[m, n] = sum_k x[m, k] weight[n, k] + bias[n], accumulated in float32 and returned as float32

Decode, chain verify, tree verify and prefill all run through it, so a row has the same bits in each. A reduced
precision of `out` is the next operation's business.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.checks import check_tensor, dtype_code
from kernels.cpu.library import library

_BLOCK = 32  # outputs per packed block, as in cpu/linear.c
_ROW_TILE = 16  # torch's own GEMM changes its order of additions with the number of rows; never with their content


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight [N, K] as `linear` wants it; make one with `pack`."""

    data: Tensor
    bias: Tensor | None  # [N] float32
    out_features: int
    in_features: int
    packed: bool


def pack(weight: Tensor, bias: Tensor | None = None) -> LinearWeight:
    """Lays [N, K] float32 or bfloat16 out for the kernel at hand; the copy replaces the original in memory.

    Raises: ValueError: other dtype, or an odd K in bfloat16.
    """
    dtype_code(weight, "weight")
    N, K = weight.shape
    bias = None if bias is None else bias.float().contiguous()
    if weight.dtype == torch.bfloat16 and K % 2:
        raise ValueError(f"weight must have an even number of columns in bfloat16, got {K}")
    if weight.device.type != "cpu" or library() is None:
        return LinearWeight(weight.contiguous(), bias, N, K, packed=False)
    blocks = -(-N // _BLOCK)
    padded = torch.zeros(blocks * _BLOCK, K, dtype=weight.dtype)
    padded[:N] = weight
    if weight.dtype == torch.bfloat16:
        data = padded.view(blocks, _BLOCK, K // 2, 2).permute(0, 2, 1, 3).contiguous()
    else:
        data = padded.view(blocks, _BLOCK, K).permute(0, 2, 1).contiguous()
    return LinearWeight(data, bias, N, K, packed=True)


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [M, K], weight [N, K] -> [M, N] float32. Always works on 16 rows at a time, so that rows stay invariant."""
    M = x.shape[0]
    padded = functional.pad(x, (0, 0, 0, -M % _ROW_TILE))
    tiles = [functional.linear(tile, weight) for tile in padded.split(_ROW_TILE)]
    out = torch.cat(tiles)[:M].float() if tiles else x.new_zeros(0, weight.shape[0], dtype=torch.float32)
    return out if bias is None else out + bias


def linear(x: Tensor, weight: LinearWeight, *, add_to: Tensor | None = None) -> Tensor:
    """x [M, K] contiguous in the weight's dtype -> [M, N] float32, added to `add_to` in place if given.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    M, N, K = x.shape[0], weight.out_features, weight.in_features
    check_tensor(x, "x", (None, K), weight.data.dtype)
    if add_to is not None:
        check_tensor(add_to, "add_to", (M, N), torch.float32)
    if not weight.packed:
        out = linear_reference(x, weight.data, weight.bias)
        return out if add_to is None else add_to.add_(out)
    kernels = library()
    assert kernels is not None  # packed only where there are kernels
    out = torch.empty(M, N) if add_to is None else add_to
    kernels.slipstream_linear(
        x.data_ptr(),
        weight.data.data_ptr(),
        None if weight.bias is None else weight.bias.data_ptr(),
        out.data_ptr(),
        M,
        N,
        K,
        dtype_code(x, "x"),
        int(add_to is not None),
    )
    return out
