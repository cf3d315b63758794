"""RMS norm, SwiGLU and RoPE on the CPU agree with their references."""

import pytest
import torch
from torch import Tensor

from kernels.norm import rms_norm, rms_norm_reference
from kernels.rope import HeadNorms, rope_write, rope_write_reference
from kernels.swiglu import swiglu, swiglu_reference

DTYPES = [torch.float32, torch.bfloat16]
# A bfloat16 result may be rounded to the neighbouring number, which is up to 2**-7 away relative to its size.
RTOL = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def assert_near(actual: Tensor, reference: Tensor) -> None:
    torch.testing.assert_close(actual, reference, rtol=RTOL[actual.dtype], atol=2e-6)


def make(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("H", [1, 15, 16, 17, 576])
def test_rms_norm_agrees_with_its_reference(dtype: torch.dtype, H: int) -> None:
    x, weight = make(5, H), make(H, seed=1)
    out = rms_norm(x, weight, 1e-5, dtype)
    assert_near(out, rms_norm_reference(x, weight, 1e-5, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 15, 16, 33, 1536])
def test_swiglu_agrees_with_its_reference(dtype: torch.dtype, width: int) -> None:
    x = make(3, 2 * width) * 4
    assert_near(swiglu(x, dtype), swiglu_reference(x, dtype))


def test_swiglu_is_finite_for_extreme_gates() -> None:
    gates = torch.tensor([[-1e4, -90.0, -87.0, 0.0, 87.0, 90.0, 1e4, 3.0] * 2])
    out = swiglu(torch.cat((gates, torch.ones_like(gates)), dim=1), torch.float32)
    torch.testing.assert_close(out, torch.nn.functional.silu(gates), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
def test_rope_write_agrees_with_its_reference(dtype: torch.dtype, normed: bool) -> None:
    M, Hq, Hkv, D = 7, 6, 2, 32
    qkv = make(M, (Hq + 2 * Hkv) * D)
    angles = torch.outer(torch.arange(50.0), 1.0 / 100 ** (torch.arange(D // 2) / D))
    positions = torch.tensor([0, 1, 49, 7, 7, 3, 20])
    slots = torch.tensor([3, 9, 0, 1, 2, 8, 5])
    norms = HeadNorms(make(D, seed=2), make(D, seed=3), 1e-6) if normed else None
    results = []
    for function in (rope_write, rope_write_reference):
        k, v, rows = torch.zeros(10, Hkv, D, dtype=dtype), torch.zeros(10, Hkv, D, dtype=dtype), qkv.clone()
        function(rows, angles.cos(), angles.sin(), positions, slots, k, v, norms)
        results.append((rows[:, : Hq * D], k, v))

    for actual, reference in zip(*results, strict=True):
        assert_near(actual, reference)
    assert not results[0][1][[4, 6, 7]].any(), "unused slots must not be written"
