"""The device for tests of Triton kernels: a GPU, or the CPU in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")

# The interpreter cannot multiply bfloat16 (kernels/cuda/interpreter.py), so tests in bfloat16 need a GPU.
_ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU")]
BFLOAT16 = pytest.param(torch.bfloat16, marks=_ON_GPU)
DTYPES = [torch.float32, BFLOAT16]


def make(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns a tensor of normally distributed numbers on the device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns a tensor filled with NaN, so that a test notices numbers that a kernel did not write."""
    return torch.full(shape, torch.nan, device=DEVICE).to(dtype)
