"""The CUDA kernel, which computes all Medusa heads in one matrix product, agrees with a computation head by head.

The input x has M rows and K columns; its first H columns are the hidden state.
"""

import pytest
import torch
from torch.nn import functional

from kernels.cuda.linear import linear_parts
from kernels.cuda.medusa import medusa_heads as cuda_medusa_heads
from kernels.linear import pack
from kernels.medusa import medusa_heads
from tests.kernels.cuda.device import DTYPES, make


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "heads", "H", "K"), [(1, 1, 16, 16), (5, 3, 24, 24), (17, 4, 300, 364)])
def test_each_head_adds_the_silu_of_its_product_to_the_hidden_state(
    dtype: torch.dtype, M: int, heads: int, H: int, K: int
) -> None:
    x, weight, bias = make(M, K, seed=1, dtype=dtype), make(heads, H, K, seed=2, dtype=dtype), make(heads, H, seed=3)
    out = cuda_medusa_heads(x, linear_parts(x, weight.view(-1, K), None, bias.view(-1)), heads)
    for head in range(heads):
        expected = x[:, :H].double() + functional.silu(x.double() @ weight[head].double().T + bias[head])
        tolerance = 1e-4 if dtype == torch.float32 else 0.4  # bfloat16 rounds the outputs, whose magnitude reaches 50
        torch.testing.assert_close(out[:, head].double(), expected, rtol=0, atol=tolerance)


def test_the_cuda_kernel_and_the_cpu_kernel_agree() -> None:
    x, weight, bias = make(5, 40, seed=1), make(3 * 24, 40, seed=2), make(3 * 24, seed=3)
    actual = cuda_medusa_heads(x, linear_parts(x, weight, None, bias), 3)
    torch.testing.assert_close(medusa_heads(x, pack(weight, bias), 3), actual, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        pytest.param(8, 4, id="rows are not a multiple of the heads"),
        pytest.param(15, 4, id="fewer columns than the hidden size 5"),
    ],
)
def test_a_weight_whose_shape_does_not_fit_three_heads_is_refused(rows: int, columns: int) -> None:
    with pytest.raises(ValueError, match=rf"\[3 H, K >= H\], got \[{rows}, {columns}\]"):
        medusa_heads(torch.ones(1, columns), pack(torch.ones(rows, columns)), 3)
