"""The linear layer on CUDA agrees with float64, and no row depends on another row.

The input has M rows and K columns, the output N columns.
"""

import pytest
import torch

from kernels.cuda.linear import add_up, linear, linear_parts, num_splits
from tests.kernels.cuda.device import DEVICE, DTYPES, make

# (M, N, K) on both sides of block sizes: a tile of 16 rows and 8 such tiles for M, a block of 64 for N and K, and 512
# for K, because a product with K >= 512 is computed in splits.
SHAPES = [(1, 63, 16), (15, 64, 63), (16, 65, 64), (17, 100, 65), (127, 64, 192), (129, 66, 511), (33, 1, 513)]


def tolerance(K: int) -> float:
    return 1e-5 * K  # rounding of float32 sums of K products near 1; a product of two bfloat16 is exact in float32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
def test_the_product_agrees_with_float64(dtype: torch.dtype, M: int, N: int, K: int) -> None:
    x, w, bias = make(M, K, seed=1, dtype=dtype), make(N, K, seed=2, dtype=dtype), make(N, seed=3)
    out = linear(x, w, None, bias)
    expected = x.double() @ w.double().T + bias.double()
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance(K))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_the_product_with_one_byte_weights_equals_the_product_with_the_scaled_weights(
    dtype: torch.dtype, kind: torch.dtype
) -> None:
    M, N, K = 17, 70, 130
    data = (torch.randn(N, K) * 40).clamp(-127, 127).to(kind).to(DEVICE)
    x, scales, add_to = make(M, K, seed=1, dtype=dtype), make(N, seed=2).abs() / 40, make(M, N, seed=3)
    expected = add_to.double() + x.double() @ data.double().T * scales.double()

    out = linear(x, data, scales, None, add_to)

    assert out is add_to
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance(K))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("K", [200, 768])  # 768 columns are split
def test_the_result_of_a_row_does_not_depend_on_the_number_of_rows(
    dtype: torch.dtype, kind: torch.dtype | None, K: int
) -> None:
    x, w = make(130, K, seed=4, dtype=dtype), make(70, K, seed=5, dtype=dtype)
    data = w if kind is None else (w * 20).to(kind)
    whole = linear(x, data, None, None)

    for M in (1, 16, 17, 33, 128):
        assert torch.equal(linear(x[:M], data, None, None), whole[:M]), M
    for first in (1, 19, 129):
        assert torch.equal(linear(x[first:].contiguous(), data, None, None), whole[first:]), first


def test_weights_with_few_outputs_and_many_columns_are_split_to_fill_the_device() -> None:
    assert [num_splits(N, K) for N, K in ((6144, 4096), (4096, 14336), (28672, 4096), (128_256, 4096))] == [4, 4, 1, 1]
    assert num_splits(1024, 128) == 1  # 128 columns are too few for two splits


def test_splits_are_added_in_ascending_order() -> None:
    parts = linear_parts(make(3, 1100, seed=1), make(40, 1100, seed=2))
    expected = parts.sums[0]
    for part in parts.sums[1:]:
        expected = expected + part
    assert parts.sums.shape[0] > 2  # with only two splits, the order would not matter
    assert torch.equal(add_up(parts), expected)


def test_an_input_without_rows_gives_an_output_without_rows() -> None:
    assert linear(make(0, 8, seed=1), make(4, 8, seed=2), None, None).shape == (0, 4)
