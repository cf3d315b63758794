"""LoRA updates of several adapters on CUDA agree with the reference, and rows do not affect each other.

Shape letters: A adapters of rank R, inputs [M, K], outputs [M, N].
"""

import pytest
import torch
from torch import Tensor

from kernels.cuda.lora import stacked_lora
from kernels.lora import LoraStack, stacked_lora_reference
from tests.kernels.cuda.device import DEVICE, DTYPES, make


def make_stack(A: int, R: int, K: int, N: int, dtype: torch.dtype) -> LoraStack:
    return LoraStack(make(A, R, K, seed=1, dtype=dtype), make(A, N, R, seed=2, dtype=dtype))


def adapters_of_rows(*runs: tuple[int, int]) -> Tensor:
    """Returns the adapter of each row, from runs of (adapter, number of rows); -1 means no adapter."""
    return torch.cat([torch.full((rows,), adapter) for adapter, rows in runs]).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("R", "K", "N"), [(1, 16, 8), (16, 64, 64), (17, 511, 65), (64, 513, 130)])
def test_each_row_gets_the_update_of_its_adapter(dtype: torch.dtype, R: int, K: int, N: int) -> None:
    # The runs have fewer rows than a tile of 16, more rows, or exactly 16.
    adapters = adapters_of_rows((2, 17), (-1, 3), (0, 1), (-1, 1), (1, 16))
    M = len(adapters)
    stack, x, out = make_stack(3, R, K, N, dtype), make(M, K, seed=3, dtype=dtype), make(M, N, seed=4)
    expected = out.clone()

    stacked_lora(x, out, adapters, stack)
    stacked_lora_reference(x, expected, adapters, stack)

    # float32: sums of K and then of R products; bfloat16: x @ down^T may round differently between the two products
    tolerance = 1e-5 * (K * R) ** 0.5 if dtype == torch.float32 else 0.01 * (K * R) ** 0.5
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)
    assert torch.equal(out[17:20], make(M, N, seed=4)[17:20]), "rows without an adapter must not change"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_result_of_a_row_does_not_depend_on_the_other_rows(dtype: torch.dtype) -> None:
    stack, x = make_stack(2, 8, 600, 70, dtype), make(40, 600, seed=3, dtype=dtype)
    adapters, whole = adapters_of_rows((1, 20), (-1, 5), (0, 15)), torch.zeros(40, 70, device=DEVICE)
    stacked_lora(x, whole, adapters, stack)
    for part in (slice(0, 1), slice(19, 26), slice(39, 40)):
        out = torch.zeros(part.stop - part.start, 70, device=DEVICE)
        stacked_lora(x[part], out, adapters[part], stack)
        assert torch.equal(out, whole[part]), part


def test_padding_the_rank_with_zeros_does_not_change_the_update() -> None:
    small, x = make_stack(1, 5, 64, 70, torch.float32), make(3, 64, seed=3)
    padded = LoraStack(  # rank 5 + 27 = 32
        torch.cat((small.down, torch.zeros(1, 27, 64, device=DEVICE)), 1),
        torch.cat((small.up, torch.zeros(1, 70, 27, device=DEVICE)), 2),
    )
    results = []
    for stack in (small, padded):
        out = torch.zeros(3, 70, device=DEVICE)
        stacked_lora(x, out, adapters_of_rows((0, 3)), stack)
        results.append(out)
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


def test_a_pass_without_rows_changes_nothing() -> None:
    stacked_lora(
        make(0, 8, seed=1), make(0, 4, seed=2), adapters_of_rows((0, 0)), make_stack(1, 2, 8, 4, torch.float32)
    )
