"""The linear layer agrees with float64, and no row depends on another row. Shape letters: x [M, K], weight [N, K]."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.cpu.library import library
from kernels.linear import (
    LinearWeight,
    linear,
    linear_reference,
    pack,
    pack_draft,
    pack_fp8,
    pack_grouped,
    pack_int4,
    pack_int8,
    pack_scaled,
)

DTYPES = [torch.float32, torch.bfloat16]
PACKS = [pack, pack_int8, pack_int4]
# (M, N, K): odd M, N on both sides of a block of 32 outputs, and K with and without a remainder for a vector of 16.
SHAPES = [(1, 31, 10), (5, 32, 64), (8, 33, 18), (9, 64, 576), (17, 100, 130)]


def make(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(params=["compiled", "reference"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "reference":
        monkeypatch.setattr("kernels.linear.library", lambda: None)
    else:
        assert library() is not None, "the tests need a C compiler"
    return str(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", [*PACKS, pack_fp8])
@pytest.mark.parametrize("num_outputs", [31, 64, 65, 100])
def test_packing_a_weight_in_pieces_gives_the_same_bytes_as_packing_it_at_once(
    implementation: str,
    dtype: torch.dtype,
    form: Callable[[Tensor], LinearWeight],
    num_outputs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = make((num_outputs, 64), dtype, 1)
    at_once = form(weight)

    monkeypatch.setattr("kernels.linear._CHUNK", 1)  # pieces of one block

    in_pieces = form(weight)
    for name in ("data", "scales", "group_scales"):
        expected, found = getattr(at_once, name), getattr(in_pieces, name)
        assert (found is None) == (expected is None)
        assert expected is None or torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_product_agrees_with_float64(
    implementation: str, dtype: torch.dtype, M: int, N: int, K: int, with_bias: bool
) -> None:
    x, w = make((M, K), dtype, 1), make((N, K), dtype, 2)
    bias = make((N,), dtype, 3) if with_bias else None
    expected = x.double() @ w.double().T + (0.0 if bias is None else bias.double())

    out = linear(x, pack(w, bias))

    assert out.dtype == torch.float32
    # Rounding of float32 sums of K products near 1; the reference in bfloat16 also rounds its result to 8 bits.
    tolerance = 0.02 * K**0.5 if implementation == "reference" and dtype == torch.bfloat16 else 1e-5 * K
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_product_with_int8_weights_uses_the_rounded_weights(
    implementation: str, dtype: torch.dtype, M: int, N: int, K: int, with_bias: bool
) -> None:
    x, w = make((M, K), dtype, 1), make((N, K), dtype, 2)
    bias = make((N,), dtype, 3) if with_bias else None
    scales = w.float().abs().amax(1, keepdim=True) / 127
    rounded = (w.float() / scales).round().double() * scales
    expected = x.double() @ rounded.T + (0.0 if bias is None else bias.double())

    out = linear(x, pack_int8(w, bias))

    # the tolerance of test_the_product_agrees_with_float64
    tolerance = 0.02 * K**0.5 if implementation == "reference" and dtype == torch.bfloat16 else 1e-5 * K
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)


def test_the_rounding_error_of_an_int8_weight_is_at_most_half_its_scale(implementation: str) -> None:
    w = torch.cat((make((40, 64), torch.float32, 2), torch.zeros(1, 64)))  # the last output has only zero weights
    restored = linear(torch.eye(64), pack_int8(w)).T  # the product with the identity is the weight
    scales = w.abs().amax(1, keepdim=True) / 127
    assert bool(((restored - w).abs() <= scales * 0.5001).all())  # half a scale, and rounding in float32
    assert bool((restored[40] == 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N", "K"), [(1, 31, 32), (3, 65, 96), (5, 32, 64), (8, 33, 96), (9, 64, 576)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_product_with_int4_weights_uses_the_values_and_scales_of_each_group(
    implementation: str, dtype: torch.dtype, M: int, N: int, K: int, with_bias: bool
) -> None:
    """Scales have both signs and differ by a factor of a thousand between outputs."""
    x, bias = make((M, K), dtype, 1), make((N,), torch.float32, 3) if with_bias else None
    values = torch.randint(-8, 8, (N, K), generator=torch.Generator().manual_seed(2)).to(torch.int8)
    scales = make((N, K // 32), torch.bfloat16, 4).float() * torch.logspace(-3, 0, N).bfloat16().float()[:, None]
    scales = scales.bfloat16().float()
    expected = x.double() @ (values * scales.repeat_interleave(32, 1)).double().T
    expected += 0.0 if bias is None else bias.double()

    out = linear(x, pack_grouped(values, scales, dtype, bias))

    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-4 * K)


def test_the_rounding_error_of_an_int4_weight_is_at_most_one_scale(implementation: str) -> None:
    w = torch.cat((make((40, 64), torch.float32, 2), torch.zeros(1, 64)))  # the last output has only zero weights
    restored = linear(torch.eye(64), pack_int4(w)).T  # the product with the identity is the weight
    scales = w.view(41, 2, 32).abs().amax(2).repeat_interleave(32, 1) / 8
    # The error is at most half a scale, plus the rounding of scales to float16. It is at most a whole scale for weights
    # that are rounded to 7 although they would need an 8.
    assert bool(((restored - w).abs() <= scales * 1.01).all())
    assert ((restored - w).abs() <= scales * 0.51).float().mean() > 0.97
    assert bool((restored[40] == 0).all())


def test_int4_weights_that_the_kernel_cannot_represent_exactly_are_refused() -> None:
    values, scales = torch.zeros(4, 64, dtype=torch.int8), torch.ones(4, 2)
    with pytest.raises(ValueError, match="multiple of 32 columns, got 62"):
        pack_int4(torch.ones(4, 62))
    with pytest.raises(ValueError, match="from -8 to 7"):
        pack_grouped(values + 8, scales, torch.float32)
    with pytest.raises(ValueError, match="represents exactly"):
        pack_grouped(values, scales + 2.0**-20, torch.float32)


def test_int8_weights_below_the_range_of_the_kernel_are_refused() -> None:
    with pytest.raises(ValueError, match="at least -127"):
        pack_scaled(torch.full((4, 8), -128, dtype=torch.int8), torch.ones(4), torch.float32)


def test_a_float8_weight_keeps_four_significant_bits() -> None:
    w = torch.cat((make((40, 64), torch.float32, 2), torch.zeros(1, 64)))  # the last output has only zero weights
    restored = linear(torch.eye(64), pack_fp8(w)).T  # the product with the identity is the weight
    # float8_e4m3fn has the maximum 448, and steps of 2**-9 between subnormal numbers.
    smallest_step = w.abs().amax(1, keepdim=True) / 448 / 2**9
    assert bool(((restored - w).abs() <= torch.maximum(w.abs() / 16, smallest_step) * 1.0001).all())
    assert bool((restored[40] == 0).all())


def test_a_drafters_bfloat16_weight_is_packed_as_int8_if_the_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = make((33, 64), torch.bfloat16, 1)
    assert pack_draft(weight).format_name == "int8"
    assert pack_draft(weight.float()).format_name == "float32"
    monkeypatch.setattr("kernels.linear.library", lambda: None)
    assert pack_draft(weight).format_name == "bfloat16"  # the reference is not faster with int8


def test_an_int8_weight_takes_half_the_memory_of_bfloat16() -> None:
    w = make((64, 576), torch.bfloat16, 1)
    assert pack_int8(w).data.nbytes == pack(w).data.nbytes // 2


def test_an_int4_weight_takes_four_and_a_half_bits() -> None:
    w = make((64, 576), torch.bfloat16, 1)
    assert pack_int4(w).data.nbytes == w.numel() * 9 // 16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pack", PACKS)
def test_the_result_of_a_row_does_not_depend_on_the_number_of_rows(
    implementation: str, dtype: torch.dtype, pack: Callable[[Tensor], LinearWeight]
) -> None:
    x, weight = make((70, 576), dtype, 4), pack(make((200, 576), dtype, 5))
    whole = linear(x, weight)

    for M in (*range(1, 34), 47, 48, 64):
        assert torch.equal(linear(x[:M], weight), whole[:M]), M
    for first in (1, 5, 19):
        assert torch.equal(linear(x[first:].contiguous(), weight), whole[first:]), first


def test_sums_near_the_smallest_normal_number_do_not_depend_on_the_number_of_rows(implementation: str) -> None:
    # VDPBF16PS takes numbers below 2**-126 for zero; other instructions compute with them.
    x, weight = make((8, 576), torch.bfloat16, 6) * 2.0**-64, pack(make((64, 576), torch.bfloat16, 7) * 2.0**-64)
    whole = linear(x, weight)

    assert 0 < whole.abs().max() < 2.0**-120
    for M in range(1, 8):
        assert torch.equal(linear(x[:M], weight), whole[:M]), M


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pack", PACKS)
def test_the_product_is_added_to_a_residual_in_place(
    implementation: str, dtype: torch.dtype, pack: Callable[[Tensor], LinearWeight]
) -> None:
    x, w, residual = make((6, 64), dtype, 1), make((40, 64), dtype, 2), make((6, 40), torch.float32, 3)
    expected = residual + linear(x, pack(w))

    out = linear(x, pack(w), add_to=residual)

    assert out is residual
    assert torch.equal(out, expected)


def test_an_input_without_rows_gives_an_output_without_rows(implementation: str) -> None:
    assert linear(torch.empty(0, 8), pack(torch.ones(4, 8))).shape == (0, 4)


def test_a_wrong_shape_or_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be torch.float32 \[None, 8\], got torch.float32 \[2, 9\]"):
        linear(torch.ones(2, 9), pack(torch.ones(4, 8)))
    with pytest.raises(ValueError, match="even number of columns, got 7"):
        pack(torch.ones(4, 7, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="even number of columns, got 7"):
        pack_int8(torch.ones(4, 7))
    with pytest.raises(ValueError, match=r"must be float32 or bfloat16, got torch.float16"):
        pack(torch.ones(4, 8, dtype=torch.float16))


def test_the_reference_does_not_return_the_rows_that_pad_a_tile() -> None:
    x, w = make((3, 16), torch.float32, 1), make((5, 16), torch.float32, 2)
    assert linear_reference(x, w).shape == (3, 5)
