"""RMSNorm.

    out[m] = x[m] / sqrt(mean(x[m]^2) + eps) * weight, computed in float32 and then cast to the output's dtype

Source: Zhang and Sennrich 2019, arXiv:1910.07467.
"""

import torch
from torch import Tensor

from kernels.checks import DTYPE_CODES, check_tensor
from kernels.cpu.library import library


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x [..., H] float32, weight [H] float32 -> [..., H] in `dtype`."""
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight).to(dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x [M, H] float32, weight [H] float32 -> [M, H] in `dtype` (float32 or bfloat16).

    Raises: ValueError: shapes or dtypes do not fit.
    """
    M, H = x.shape
    check_tensor(x, "x", (M, H), torch.float32)
    check_tensor(weight, "weight", (H,), torch.float32)
    kernels = library() if x.device.type == "cpu" else None
    if kernels is None:
        if x.is_cuda:
            from kernels.cuda.norm import rms_norm as launch  # imported here, because triton requires CUDA

            return launch(x, weight, eps, dtype)
        return rms_norm_reference(x, weight, eps, dtype)
    out = torch.empty(M, H, dtype=dtype)
    kernels.slipstream_rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), M, H, eps, DTYPE_CODES[dtype])
    return out
