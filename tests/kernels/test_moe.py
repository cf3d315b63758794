"""Experts are chosen as in DeepSeek-V3 and Mixtral, and a row's choice does not depend on other rows.

Each row has the hidden size H and chooses K of E experts.
"""

import pytest
import torch
from torch import Tensor

from kernels.linear import pack
from kernels.moe import Routing, route, route_softmax, route_softmax_reference

E, H, K = 10, 48, 3


def make_routing(**changes: float) -> tuple[Routing, Tensor]:
    """Returns a routing, and the weight [E, H] that it contains in packed form."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(E, H, generator=generator) * 0.2
    settings = {"num_chosen": K, "num_groups": 5, "num_chosen_groups": 2, "normalized": True, "scale": 2.5} | changes
    return Routing(weight=pack(weight), bias=torch.randn(E, generator=generator), **settings), weight  # type: ignore[arg-type]


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


def rows_of(M: int) -> Tensor:
    return torch.randn(M, H, generator=torch.Generator().manual_seed(2))


def test_the_choice_of_a_row_does_not_depend_on_the_other_rows() -> None:
    routing, _ = make_routing()
    x = rows_of(37)
    whole = route(x, routing)
    for start, end in (*((row, row + 1) for row in range(37)), (3, 20), (20, 37)):
        for part, all_rows in zip(route(x[start:end].contiguous(), routing), whole, strict=True):
            assert torch.equal(part, all_rows[start:end])


def test_a_pass_without_rows_chooses_no_experts() -> None:
    assert [part.shape for part in route(torch.empty(0, H), make_routing()[0])] == [(0, K), (0, K)]
    assert [part.shape for part in route_softmax(torch.empty(0, E), K, normalized=True)] == [(0, K), (0, K)]


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("num_chosen", [1, 3, E])
def test_the_experts_with_the_largest_probabilities_are_chosen(num_chosen: int, normalized: bool) -> None:
    logits = torch.randn(9, E, generator=torch.Generator().manual_seed(3)) * 4
    best = logits.softmax(-1).topk(num_chosen)
    expected = best.values / best.values.sum(-1, keepdim=True) if normalized else best.values

    for function in (route_softmax, route_softmax_reference):
        chosen, weights = function(logits, num_chosen, normalized=normalized)
        assert torch.equal(chosen, best.indices)
        torch.testing.assert_close(weights, expected, atol=1e-6, rtol=1e-6)  # rounding of exponentials and sums


def test_large_logits_do_not_overflow_and_equal_logits_choose_distinct_experts() -> None:
    chosen, weights = route_softmax(torch.tensor([[3e38, -3e38, 3e38, 0.0], [0.0] * 4]), 2, normalized=True)
    assert chosen.tolist() == [[0, 2], [0, 1]]
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_choosing_more_experts_than_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_chosen must be in 1..10, got 11"):
        route_softmax(torch.zeros(1, E), 11, normalized=True)
