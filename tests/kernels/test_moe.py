"""Experts are chosen and mixed as in the DeepSeek-V3 paper, and a row's result does not depend on other rows.

Each row has the hidden size H and chooses K of E experts, which have the intermediate size INNER.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.linear import pack
from kernels.moe import Expert, Routing, mix_experts, route

E, H, INNER, K = 10, 48, 40, 3


def make_routing(**changes: float) -> tuple[Routing, Tensor]:
    """Returns a routing, and the weight [E, H] that it contains in packed form."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(E, H, generator=generator) * 0.2
    settings = {"num_chosen": K, "num_groups": 5, "num_chosen_groups": 2, "normalized": True, "scale": 2.5} | changes
    return Routing(weight=pack(weight), bias=torch.randn(E, generator=generator), **settings), weight  # type: ignore[arg-type]


def make_experts(dtype: torch.dtype) -> tuple[tuple[Expert, ...], list[tuple[Tensor, Tensor]]]:
    """Returns E experts, and their weights (gate_up, down) before packing."""
    generator = torch.Generator().manual_seed(1)
    weights = [
        ((torch.randn(2 * INNER, H, generator=generator) * 0.2).to(dtype), torch.randn(H, INNER).to(dtype))
        for _ in range(E)
    ]
    return tuple(Expert(pack(gate_up), pack(down)) for gate_up, down in weights), weights


@pytest.mark.parametrize("changes", [{}, {"num_chosen_groups": 5}, {"normalized": False, "scale": 1.0}])
def test_the_best_experts_of_the_best_groups_are_chosen(changes: dict[str, float]) -> None:
    routing, weight = make_routing(**changes)
    x = torch.randn(7, H)

    chosen, weights = route(x, routing)

    for row in range(7):
        scores = (x[row] @ weight.t()).sigmoid()
        ranked = scores + routing.bias
        groups = ranked.view(routing.num_groups, -1).topk(2).values.sum(-1).topk(routing.num_chosen_groups).indices
        allowed = [e for e in range(E) if e // (E // routing.num_groups) in groups]
        best = sorted(allowed, key=lambda e: -float(ranked[e]))[:K]
        expected = scores[best] / (scores[best].sum() if routing.normalized else 1.0) * routing.scale
        assert chosen[row].tolist() == best
        torch.testing.assert_close(weights[row], expected, atol=1e-5, rtol=1e-5)  # rounding of sums


def test_the_output_is_the_weighted_sum_of_the_experts() -> None:
    experts, weights = make_experts(torch.float32)
    x, shares = torch.randn(5, H), torch.rand(5, K)
    chosen = torch.randint(3, (5, 1)) + torch.tensor([[0, 3, 6]])  # [5, K], three different experts for each row

    out = mix_experts(x, chosen, shares, experts)

    for row in range(5):
        expected = torch.zeros(H)
        for index, share in zip(chosen[row], shares[row], strict=True):
            gate, up = (x[row] @ weights[index][0].t()).chunk(2)
            expected += share * ((functional.silu(gate) * up) @ weights[index][1].t())
        torch.testing.assert_close(out[row], expected, atol=1e-4, rtol=1e-4)  # sums of 48 terms, in another order


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_of_a_row_does_not_depend_on_the_other_rows(dtype: torch.dtype) -> None:
    routing, _ = make_routing()
    experts, _ = make_experts(dtype)
    x = torch.randn(37, H, generator=torch.Generator().manual_seed(2)).to(dtype)

    def run(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chosen, weights = route(rows.float(), routing)
        return chosen, weights, mix_experts(rows, chosen, weights, experts)

    whole = run(x)
    for start, end in (*((row, row + 1) for row in range(37)), (3, 20), (20, 37)):
        for part, all_rows in zip(run(x[start:end].contiguous()), whole, strict=True):
            assert torch.equal(part, all_rows[start:end])


def test_an_input_without_rows_gives_an_output_without_rows() -> None:
    routing, _ = make_routing()
    chosen, weights = route(torch.empty(0, H), routing)
    assert mix_experts(torch.empty(0, H), chosen, weights, make_experts(torch.float32)[0]).shape == (0, H)
