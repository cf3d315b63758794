"""Mixtures of experts on CUDA agree with the reference, and rows do not affect each other.

Each of M rows of size H chooses K of E experts. The experts have the intermediate size `inner`.
"""

import pytest
import torch
from torch import Tensor

from kernels.cuda.experts import mix_experts, route_softmax
from kernels.experts import ClampedGate, Expert, Experts, Stack, mix_experts_reference
from kernels.linear import LinearWeight
from kernels.moe import route_softmax_reference
from tests.kernels.cuda.device import DEVICE, DTYPES, make

E = 6
GATES = [None, ClampedGate(alpha=1.702, limit=1.0)]


def weight(data: Tensor, scales: Tensor | None, bias: Tensor | None) -> LinearWeight:
    N, K = data.shape
    return LinearWeight(
        data=data, scales=scales, bias=bias, out_features=N, in_features=K, dtype=torch.float32, packed=False
    )


def make_experts(H: int, inner: int, gate: ClampedGate | None = None, *, form: str = "plain") -> Experts:
    """Makes experts with stacked weights, also on the CPU, where `Experts` itself does not stack them.

    Without a GPU, the tests run the kernels in Triton's interpreter, on weights on the CPU.
    """

    def stack(N: int, K: int, seed: int) -> Stack:
        data = make(E, N, K, seed=seed) * 0.2
        scales = make(E, N, seed=seed + 1) * 0.02 if form == "int8" else None
        data = (data * 50).round().clamp(-127, 127).to(torch.int8) if form == "int8" else data
        return Stack(data, scales, make(E, N, seed=seed + 2) if form == "bias" else None)

    def rows(stack: Stack) -> list[LinearWeight]:
        parts = [list(part) if part is not None else [None] * E for part in (stack.scales, stack.bias)]
        return [weight(*each) for each in zip(stack.data, *parts, strict=True)]

    gate_up, down = stack(2 * inner, H, 1), stack(H, inner, 4)
    experts = Experts([Expert(*pair) for pair in zip(rows(gate_up), rows(down), strict=True)], gate)
    experts.gate_up, experts.down = gate_up, down
    return experts


def make_rows(M: int, H: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns inputs, choices and weights. All rows choose expert 3, and none chooses expert 5."""
    generator = torch.Generator().manual_seed(7)
    others = [torch.randperm(E - 3, generator=generator)[: K - 1] for _ in range(M)]
    chosen = torch.stack([torch.cat((torch.tensor([3]), other)) for other in others]).to(DEVICE)
    return make(M, H, seed=8), chosen, make(M, K, seed=9).abs()


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("form", ["plain", "bias", "int8"])
@pytest.mark.parametrize(("M", "H", "inner", "K"), [(1, 64, 32, 2), (17, 65, 63, 3), (5, 600, 33, 1)])
def test_the_result_agrees_with_the_reference(
    gate: ClampedGate | None, form: str, M: int, H: int, inner: int, K: int
) -> None:
    experts = make_experts(H, inner, gate, form=form)
    x, chosen, weights = make_rows(M, H, K)
    expected = mix_experts_reference(x, chosen, weights, experts)
    out = mix_experts(x, chosen, weights, experts)
    # Each output of the first layer is a sum of H products, and each output of the second layer is a sum of `inner`
    # products. The kernel adds these products in a different order than the reference.
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    residual = make(M, H, seed=10)
    summed = mix_experts(x, chosen, weights, experts, residual.clone())
    torch.testing.assert_close(summed, out + residual, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


def test_the_result_of_a_row_does_not_depend_on_the_other_rows() -> None:
    experts, rows = make_experts(600, 40), make_rows(40, 600, 2)
    whole = mix_experts(*rows, experts)
    for part in (slice(0, 1), slice(3, 20), slice(39, 40)):
        x, chosen, weights = (tensor[part] for tensor in rows)
        assert torch.equal(mix_experts(x, chosen, weights, experts), whole[part]), part


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(8, 2), (60, 4), (5, 5), (33, 3)])
def test_the_kernel_chooses_the_same_experts_as_the_reference(
    dtype: torch.dtype, normalized: bool, num_experts: int, num_chosen: int
) -> None:
    logits = make(7, num_experts, seed=1, dtype=dtype).float()
    chosen, weights = route_softmax(logits, num_chosen, normalized)
    expected = route_softmax_reference(logits, num_chosen, normalized)
    if dtype == torch.float32:  # in bfloat16, logits may be equal, and the kernel may choose another of the equal ones
        assert torch.equal(chosen, expected[0])
    torch.testing.assert_close(weights, expected[1], rtol=1e-5, atol=1e-6)  # rounding of exponentials and sums
    single = route_softmax(logits[3:4].contiguous(), num_chosen, normalized)
    assert torch.equal(single[0], chosen[3:4])
    assert torch.equal(single[1], weights[3:4])


def test_a_pass_without_rows_gives_an_output_without_rows() -> None:
    chosen = torch.empty(0, 2, dtype=torch.int64, device=DEVICE)
    assert mix_experts(make(0, 64, seed=1), chosen, make(0, 2, seed=1), make_experts(64, 32)).shape == (0, 64)
    assert route_softmax(make(0, 8, seed=1), 2, True)[0].shape == (0, 2)
