"""Where the Triton kernels are tested: on a GPU, or in Triton's interpreter, which conftest.py switches on."""

import pytest
import torch
from torch import Tensor

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")

# The interpreter's `tl.dot` silently gives garbage for bfloat16.
_ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU")]
BFLOAT16 = pytest.param(torch.bfloat16, marks=_ON_GPU)
DTYPES = [torch.float32, BFLOAT16]


def make(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What must be overwritten, and must not be read."""
    return torch.full(shape, torch.nan, device=DEVICE).to(dtype)
