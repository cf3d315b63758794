"""RMS norm, SwiGLU and RoPE on CUDA agree with their references.

Their input is a matrix product that may consist of several splits, which these operations add first. Shape letters: M
rows, N or H columns, Hq query heads and Hkv KV heads of dimension D.
"""

import pytest
import torch
from torch import Tensor

from kernels.cuda.norm import add_rms_norm, rms_norm
from kernels.cuda.parts import Parts
from kernels.cuda.rope import rope_write
from kernels.cuda.swiglu import swiglu
from kernels.norm import rms_norm_reference
from kernels.rope import HeadNorms, rope_write_reference
from kernels.swiglu import swiglu_reference
from tests.kernels.cuda.device import BFLOAT16, DEVICE, make, poisoned

OUT_DTYPES = [torch.float32, BFLOAT16]
# float32: sqrt and exp differ between libraries. bfloat16: a result may be rounded to the neighbouring number.
RTOL = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def assert_near(actual: Tensor, reference: Tensor) -> None:
    torch.testing.assert_close(actual, reference, rtol=RTOL[actual.dtype], atol=4e-6)


def make_parts(splits: int, M: int, N: int, *, plain: bool = False) -> tuple[Parts, Tensor]:
    """Returns a product in splits, and its value [M, N]. plain: the product has no scales and no bias."""
    sums = make(splits, M, N, seed=1)
    if plain:
        return Parts(sums=sums), sums.sum(0)
    scales, bias = make(N, seed=2), make(N, seed=3)
    return Parts(sums=sums, scales=scales, bias=bias), sums.sum(0) * scales + bias


@pytest.mark.parametrize("dtype", OUT_DTYPES)
@pytest.mark.parametrize("H", [1, 15, 64, 65, 576])
def test_rms_norm_agrees_with_its_reference(dtype: torch.dtype, H: int) -> None:
    x, weight = make(5, H, seed=1), make(H, seed=2)
    assert_near(rms_norm(x, weight, 1e-5, dtype), rms_norm_reference(x, weight, 1e-5, dtype))


@pytest.mark.parametrize("dtype", OUT_DTYPES)
@pytest.mark.parametrize("splits", [1, 4])
def test_add_rms_norm_adds_the_product_to_the_residual_before_the_norm(dtype: torch.dtype, splits: int) -> None:
    parts, added = make_parts(splits, 5, 100)
    residual, weight = make(5, 100, seed=4), make(100, seed=5)
    expected = residual + added

    out = add_rms_norm(parts, residual, weight, 1e-6, dtype)

    assert_near(residual, expected)
    assert_near(out, rms_norm_reference(expected, weight, 1e-6, dtype))


@pytest.mark.parametrize("dtype", OUT_DTYPES)
@pytest.mark.parametrize(("splits", "width"), [(1, 1), (2, 1023), (1, 1024), (3, 1025)])
def test_swiglu_agrees_with_its_reference(dtype: torch.dtype, splits: int, width: int) -> None:
    parts, x = make_parts(splits, 3, 2 * width)
    assert_near(swiglu(parts, dtype), swiglu_reference(x, dtype))


@pytest.mark.filterwarnings("ignore:overflow")  # from numpy in the interpreter: exp(1e4) is infinite, as intended
def test_swiglu_is_finite_for_extreme_gates() -> None:
    gates = torch.tensor([[-1e4, -90.0, -87.0, 0.0, 87.0, 90.0, 1e4, 3.0] * 2], device=DEVICE)
    out = swiglu(Parts(sums=torch.cat((gates, torch.ones_like(gates)), dim=1).unsqueeze(0)), torch.float32)
    torch.testing.assert_close(out, torch.nn.functional.silu(gates), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("dtype", OUT_DTYPES)
@pytest.mark.parametrize(("splits", "normed"), [(1, False), (1, True), (3, True)])
@pytest.mark.parametrize(("Hq", "Hkv", "D"), [(6, 2, 32), (0, 1, 16), (3, 1, 24)])
def test_rope_write_agrees_with_its_reference(
    dtype: torch.dtype, splits: int, normed: bool, Hq: int, Hkv: int, D: int
) -> None:
    M = 7
    parts, qkv = make_parts(splits, M, (Hq + 2 * Hkv) * D)
    angles = torch.outer(torch.arange(50.0), 1.0 / 100 ** (torch.arange(D // 2) / D)).to(DEVICE)
    positions = torch.tensor([0, 1, 49, 7, 7, 3, 20], device=DEVICE)
    slots = torch.tensor([3, 9, 0, 1, 2, 8, 5], device=DEVICE)
    norms = HeadNorms(make(D, seed=4), make(D, seed=5), 1e-6) if normed else None
    tables = (angles.cos(), angles.sin(), positions, slots)
    k, v = poisoned(10, Hkv, D, dtype=dtype), poisoned(10, Hkv, D, dtype=dtype)
    k_reference, v_reference = k.clone(), v.clone()
    queries = poisoned(M, Hq * D + 8)  # 8 columns more than are written

    rope_write(parts, *tables, k, v, norms, queries)
    rope_write_reference(qkv, *tables, k_reference, v_reference, norms)

    assert_near(queries[:, : Hq * D], qkv[:, : Hq * D])
    assert queries[:, Hq * D :].isnan().all()
    assert_near(k[slots], k_reference[slots])
    assert_near(v[slots], v_reference[slots])
    assert k[[4, 6, 7]].isnan().all(), "unused slots must not be written"


def test_rope_write_may_overwrite_its_input_with_the_queries() -> None:
    parts, qkv = make_parts(1, 3, 4 * 16, plain=True)
    cosines, sines, positions = make(9, 8, seed=6), make(9, 8, seed=7), torch.arange(3, device=DEVICE)
    k, v = poisoned(3, 1, 16), poisoned(3, 1, 16)
    rope_write_reference(qkv, cosines, sines, positions, positions, k.clone(), v.clone(), None)
    rope_write(parts, cosines, sines, positions, positions, k, v, None, parts.sums[0])
    assert_near(parts.sums[0], qkv)


def test_the_result_of_a_row_does_not_depend_on_the_other_rows() -> None:
    parts, _ = make_parts(3, 9, 200)
    row_parts = Parts(sums=parts.sums[:, 4:5].contiguous(), scales=parts.scales, bias=parts.bias)  # row 4 only
    residual, weight = make(9, 200, seed=4), make(200, seed=5)
    row_residual = residual[4:5].clone()
    assert torch.equal(swiglu(parts, torch.float32)[4:5], swiglu(row_parts, torch.float32))
    whole = add_rms_norm(parts, residual, weight, 1e-6, torch.float32)
    assert torch.equal(whole[4:5], add_rms_norm(row_parts, row_residual, weight, 1e-6, torch.float32))


def test_slots_at_offsets_above_2_to_the_31_are_addressed_correctly() -> None:
    far = 2**27 + 3  # slots of 16 numbers each: the offset of this slot exceeds 2**31
    cache = torch.empty(far + 1, 1, 16, device=DEVICE)  # pages that are never written use no memory
    qkv, positions = make(1, 16, seed=1).repeat(1, 3), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    ones, zeros = torch.ones(1, 8, device=DEVICE), torch.zeros(1, 8, device=DEVICE)
    rope_write(Parts(sums=qkv.unsqueeze(0)), ones, zeros, positions, positions + far, cache, cache, None, qkv)
    assert torch.equal(cache[far, 0], qkv[0, 32:])  # the value, which overwrites the key in the same cache
