"""The kernel that computes a product and SwiGLU gives the same bits as the two kernels that it replaces."""

import pytest
import torch
from torch import Tensor

from kernels.cuda.linear import linear_parts, num_splits
from kernels.cuda.swiglu import swiglu, swiglu_linear
from tests.kernels.cuda.device import DEVICE, DTYPES, make

# (M, I, K) on both sides of a tile of 16 rows, eight such tiles, and blocks of 64 outputs and inputs.
SHAPES = [(1, 1, 16), (15, 63, 64), (16, 64, 63), (17, 65, 65), (127, 64, 130), (129, 100, 64)]


def make_weight(N: int, K: int, dtype: torch.dtype, kind: torch.dtype | None) -> tuple[Tensor, Tensor | None]:
    """Returns a weight and its scales. The weight is so small that exp(-gate) is finite.

    kind: the dtype of a quantized weight; None: the weight is not quantized and has no scales.
    """
    weight = make(N, K, seed=2, dtype=dtype)
    if kind is None:
        return weight / 8, None
    return (weight * 30).clamp(-127, 127).to(kind), make(N, seed=3).abs() / 300


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("M", "width", "K", "kind"),
    [*((*shape, None) for shape in SHAPES), (17, 65, 65, torch.int8), (17, 65, 65, torch.float8_e4m3fn)],
)
def test_one_kernel_gives_the_same_bits_as_separate_kernels_for_the_product_and_swiglu(
    dtype: torch.dtype, M: int, width: int, K: int, kind: torch.dtype | None
) -> None:
    x, bias = make(M, K, seed=1, dtype=dtype), make(2 * width, seed=4)
    data, scales = make_weight(2 * width, K, dtype, kind)
    assert num_splits(2 * width, K) == 1
    for used in (bias, None):
        expected = swiglu(linear_parts(x, data, scales, used), dtype)
        assert torch.equal(swiglu_linear(x, data, scales, used), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [130, 600])  # 600 columns are split
def test_the_result_agrees_with_float64(dtype: torch.dtype, K: int) -> None:
    x, (w, _), bias = make(18, K, seed=1, dtype=dtype), make_weight(2 * 70, K, dtype, None), make(2 * 70, seed=3)
    gate, up = (x.double() @ w.double().T + bias.double()).chunk(2, dim=1)
    expected = torch.nn.functional.silu(gate) * up
    out = swiglu_linear(x, w, None, bias)
    assert out.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2  # sums of float32 with large terms; rounding to bfloat16
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [None, torch.int8])
def test_the_result_of_a_row_does_not_depend_on_the_number_of_rows(
    dtype: torch.dtype, kind: torch.dtype | None
) -> None:
    x = make(130, 130, seed=4, dtype=dtype)
    data, scales = make_weight(2 * 70, 130, dtype, kind)
    whole = swiglu_linear(x, data, scales, None)

    for M in (1, 16, 17, 33, 128):
        assert torch.equal(swiglu_linear(x[:M], data, scales, None), whole[:M]), M
    for first in (1, 19, 129):
        assert torch.equal(swiglu_linear(x[first:].contiguous(), data, scales, None), whole[first:]), first


def test_an_input_without_rows_gives_an_output_without_rows() -> None:
    assert swiglu_linear(torch.zeros(0, 8, device=DEVICE), make(6, 8, seed=4), None, None).shape == (0, 3)
