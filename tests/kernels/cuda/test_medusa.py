"""Medusa heads computed with a single matrix product agree with heads computed one by one, on CUDA and on the CPU.

The input has M rows and K columns. Its first H columns are the hidden state.
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
        tolerance = 1e-4 if dtype == torch.float32 else 0.4  # bfloat16: rounding of outputs up to 50
        torch.testing.assert_close(out[:, head].double(), expected, rtol=0, atol=tolerance)


def test_the_cuda_kernel_and_the_cpu_agree() -> None:
    x, weight, bias = make(5, 40, seed=1), make(3 * 24, 40, seed=2), make(3 * 24, seed=3)
    actual = cuda_medusa_heads(x, linear_parts(x, weight, None, bias), 3)
    torch.testing.assert_close(medusa_heads(x, pack(weight, bias), 3), actual, rtol=1e-5, atol=1e-5)


def test_medusa_weights_with_8_rows_for_3_heads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[3 H, K >= H\], got \[8, 4\]"):
        medusa_heads(torch.ones(1, 4), pack(torch.ones(8, 4)), 3)
