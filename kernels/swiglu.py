"""SwiGLU: out[m, i] = silu(x[m, i]) x[m, I + i] for i < I, computed in float32 and then cast to the output's dtype.

Source: Shazeer 2020, arXiv:2002.05202.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.checks import DTYPE_CODES, check_tensor
from kernels.cpu.library import library


def swiglu_reference(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x [M, 2 I] float32 -> [M, I] in `dtype`. The first I columns of x are the gate."""
    gate, up = x.chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(dtype)


def swiglu(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x [M, 2 I] float32 -> [M, I] in `dtype` (float32 or bfloat16). The first I columns of x are the gate.

    Raises: ValueError: the shape or the dtype of x does not fit.
    """
    M, width = x.shape
    check_tensor(x, "x", (M, width), torch.float32)
    if width % 2:
        raise ValueError(f"x must have an even number of columns, got {width}")
    kernels = library() if x.device.type == "cpu" else None
    if kernels is None:
        if x.is_cuda:
            from kernels.cuda.parts import Parts  # imported here, because triton requires CUDA
            from kernels.cuda.swiglu import swiglu as launch

            return launch(Parts(sums=x.unsqueeze(0)), dtype)
        return swiglu_reference(x, dtype)
    out = torch.empty(M, width // 2, dtype=dtype)
    kernels.slipstream_swiglu(x.data_ptr(), out.data_ptr(), M, width // 2, DTYPE_CODES[dtype])
    return out
