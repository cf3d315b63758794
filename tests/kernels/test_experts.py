"""`mix_experts` returns the weighted sum of each row's experts, with the same bits in any batch.

M rows of the hidden size H choose K of E experts, which have the intermediate size `inner`. The C kernel needs an
`inner` that is a multiple of 32; other sizes use the reference.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.experts import ClampedGate, Expert, Experts, mix_experts, mix_experts_reference
from kernels.linear import pack, pack_int4, pack_int8

E, H, K = 10, 64, 3
GATES = [None, ClampedGate(alpha=1.702, limit=2.0)]
FORMATS = {"as is": pack, "int8": pack_int8, "int4": pack_int4}


def make_experts(
    dtype: torch.dtype, inner: int = 96, gate: ClampedGate | None = None, *, bias: bool = False, form: str = "as is"
) -> tuple[Experts, list[tuple[Tensor, Tensor, Tensor, Tensor]]]:
    """Returns E experts, and for each the weights and biases of gate_up and down before packing."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.2

    parts = [
        (random(2 * inner, H).to(dtype), random(2 * inner) * bias, random(H, inner).to(dtype), random(H) * bias)
        for _ in range(E)
    ]
    packed = FORMATS[form]
    experts = [
        Expert(packed(gate_up, first if bias else None), packed(down, second if bias else None))
        for gate_up, first, down, second in parts
    ]
    return Experts(experts, gate), parts


def make_rows(M: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Returns inputs, choices and weights. Half of the rows choose expert 4, and no row chooses expert 0."""
    generator = torch.Generator().manual_seed(2)
    chosen = torch.stack([torch.randperm(E - 1, generator=generator)[:K] + 1 for _ in range(M)])
    for row in chosen[::2]:
        if 4 not in row:
            row[0] = 4
    return torch.randn(M, H, generator=generator).to(dtype), chosen, torch.rand(M, K, generator=generator)


@pytest.mark.parametrize("inner", [96, 40])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("bias", [False, True])
def test_the_output_is_the_weighted_sum_of_the_experts(inner: int, gate: ClampedGate | None, bias: bool) -> None:
    experts, parts = make_experts(torch.float32, inner, gate, bias=bias)
    assert (experts.structure is not None) == (inner == 96)  # whether the C kernel is used
    x, chosen, weights = make_rows(23, torch.float32)

    out = mix_experts(x, chosen, weights, experts)

    for row in range(23):
        expected = torch.zeros(H)
        for index, share in zip(chosen[row], weights[row], strict=True):
            gate_up, first, down, second = parts[index]
            gates, ups = (x[row] @ gate_up.t() + first).chunk(2)
            if gate is None:
                inner_state = functional.silu(gates) * ups
            else:
                gates = gates.clamp(max=gate.limit)
                inner_state = (ups.clamp(-gate.limit, gate.limit) + 1) * gates * torch.sigmoid(gates * gate.alpha)
            expected += share * (inner_state @ down.t() + second)
        torch.testing.assert_close(out[row], expected, atol=1e-4, rtol=1e-4)  # sums of 96 terms, in another order


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("M", [1, 5, 6, 33])
def test_the_kernel_agrees_with_the_reference(dtype: torch.dtype, form: str, M: int) -> None:
    experts, _ = make_experts(dtype, form=form)
    x, chosen, weights = make_rows(M, dtype)
    expected = mix_experts_reference(x, chosen, weights, experts)
    assert expected.abs().max() > 0.1
    # The products have the same bits. Only the weighted sum over 3 experts is rounded differently, as it uses FMA.
    tolerance = 1e-6 * float(expected.abs().max())
    torch.testing.assert_close(mix_experts(x, chosen, weights, experts), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [96, 40])
@pytest.mark.parametrize("gate", GATES)
def test_the_result_of_a_row_does_not_depend_on_the_other_rows(
    dtype: torch.dtype, inner: int, gate: ClampedGate | None
) -> None:
    experts, _ = make_experts(dtype, inner, gate, bias=True)
    rows = make_rows(70, dtype)
    whole = mix_experts(*rows, experts)
    for start, end in (*((row, row + 1) for row in range(0, 70, 3)), (3, 8), (3, 9), (20, 37), (37, 70)):
        x, chosen, weights = (tensor[start:end].contiguous() for tensor in rows)
        assert torch.equal(mix_experts(x, chosen, weights, experts), whole[start:end]), (start, end)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(4))
    x, chosen, weights = (tensor[order].contiguous() for tensor in rows)
    assert torch.equal(mix_experts(x, chosen, weights, experts), whole[order])


@pytest.mark.parametrize("inner", [96, 40])
def test_the_result_is_added_to_a_given_tensor(inner: int) -> None:
    experts, _ = make_experts(torch.float32, inner)
    rows = make_rows(4, torch.float32)
    residual = torch.randn(4, H)
    expected = residual + mix_experts(*rows, experts)
    assert torch.equal(mix_experts(*rows, experts, add_to=residual), expected)
    assert torch.equal(residual, expected)


def test_an_input_without_rows_gives_an_output_without_rows() -> None:
    experts, _ = make_experts(torch.float32)
    empty = torch.empty(0, K, dtype=torch.int64)
    assert mix_experts(torch.empty(0, H), empty, torch.empty(0, K), experts).shape == (0, H)


def test_inputs_that_do_not_fit_are_refused() -> None:
    experts, _ = make_experts(torch.bfloat16)
    x, chosen, weights = make_rows(2, torch.bfloat16)
    with pytest.raises(ValueError, match=r"x must be torch\.bfloat16"):
        mix_experts(x.float(), chosen, weights, experts)
    with pytest.raises(ValueError, match=r"weights must be torch.float32 \[2, 3\]"):
        mix_experts(x, chosen, weights[:1], experts)
