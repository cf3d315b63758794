"""Tests of `dot`, which replaces the matrix product of Triton's interpreter (kernels/cuda/interpreter.py).

The result of `dot` agrees with float64, and a row's bits do not depend on the row's index in a tile.
"""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

from kernels.cuda.interpreter import _create_dot, dot
from tests.kernels.cuda.device import HAS_GPU


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@triton.jit  # type: ignore[untyped-decorator]
def multiply(a_ptr, b_ptr, out_ptr, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = a @ b for square matrices [SIDE, SIDE]."""
    offsets = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    product = tl.dot(tl.load(a_ptr + offsets), tl.load(b_ptr + offsets), input_precision="ieee")
    tl.store(out_ptr + offsets, product)


@pytest.mark.parametrize(("M", "K", "N"), [(1, 1, 1), (1, 128, 1), (16, 64, 16), (30, 7, 5), (64, 128, 64)])
def test_the_product_agrees_with_float64(M: int, K: int, N: int) -> None:
    a, b, total = normal(M, K, seed=1), normal(K, N, seed=2), normal(M, N, seed=3)

    out = dot(a, b, total)

    expected = total + a.astype(np.float64) @ b.astype(np.float64)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, expected, atol=1e-5 * K)  # rounding of float32 sums of K products near 1


@pytest.mark.parametrize("side", ["rows", "columns"])
def test_the_index_of_a_row_or_column_in_a_tile_does_not_change_its_result(side: str) -> None:
    a, b, total = normal(64, 96, seed=1), normal(96, 64, seed=2), normal(64, 64, seed=3)
    whole = dot(a, b, total)

    for part in (slice(0, 1), slice(5, 21), slice(20, 25), slice(17, 64), slice(63, 64)):
        if side == "rows":
            assert np.array_equal(dot(a[part], b, total[part]), whole[part]), part
        else:
            assert np.array_equal(dot(a, b[:, part], total[:, part]), whole[:, part]), part


def test_row_and_column_major_operands_give_the_same_bits() -> None:
    a, b, total = normal(16, 32, seed=1), normal(32, 16, seed=2), normal(16, 16, seed=3)

    transposed = dot(np.asfortranarray(a), np.asfortranarray(b), np.asfortranarray(total))

    assert np.array_equal(transposed, dot(a, b, total))


def test_dot_multiplies_stacks_of_tiles() -> None:
    a, b, total = normal(3, 8, 16, seed=1), normal(3, 16, 4, seed=2), normal(3, 8, 4, seed=3)

    out = dot(a, b, total)

    assert np.array_equal(out, np.stack([dot(*tiles) for tiles in zip(a, b, total, strict=True)]))


@pytest.mark.skipif(HAS_GPU, reason="the kernel runs on the GPU")
def test_interpreted_kernels_use_our_dot_instead_of_blas() -> None:
    a, b = normal(32, 32, seed=1), normal(32, 32, seed=2)
    out = torch.empty(32, 32)

    multiply[(1,)](torch.from_numpy(a), torch.from_numpy(b), out, SIDE=32)

    assert isinstance(multiply, InterpretedFunction)
    assert InterpreterBuilder.create_dot is _create_dot
    assert np.array_equal(out.numpy(), dot(a, b, np.zeros((32, 32), dtype=np.float32)))


@pytest.mark.skipif(HAS_GPU, reason="the kernel runs on the GPU")
def test_a_bfloat16_product_is_refused() -> None:
    square = torch.ones(16, 16, dtype=torch.bfloat16)

    with pytest.raises(Exception, match="cannot multiply tiles of bf16"):
        multiply[(1,)](square, square, torch.empty(16, 16), SIDE=16)
