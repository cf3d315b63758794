"""A mixture of experts whose result for a row does not depend on other rows.

    s = sigmoid(x W_r)                          the scores of the E experts, which form groups of equal size
    out = sum_k weight_k expert_k(x)            over the K experts with the largest s + bias in the best groups
    expert(x) = down(swiglu(gate_up(x)))        weight_k is s_k, optionally normalised to a sum of 1, then scaled

The best groups are those with the largest sum of their two largest s + bias. A row has the same bits in any batch:
`linear` does not depend on the other rows, and the experts of a row are added in ascending order of their indices.

Source: DeepSeek-V3, arXiv:2412.19437, section 2.1.2 (auxiliary-loss-free balancing).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.checks import check_tensor
from kernels.linear import LinearWeight, linear
from kernels.swiglu import swiglu


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How experts are chosen. num_chosen is K.

    weight: [E, H] float32.
    bias: [E] float32. It affects which experts are chosen, but not their weights.
    """

    weight: LinearWeight
    bias: Tensor
    num_chosen: int
    num_groups: int
    num_chosen_groups: int
    normalized: bool
    scale: float


@dataclass(frozen=True, slots=True)
class Expert:
    gate_up: LinearWeight  # [2 I, H] with the intermediate size I; the gate's rows come first
    down: LinearWeight  # [H, I]


def _sum_in_order(columns: Tensor) -> Tensor:
    """Sums [M, K] -> [M, 1] from left to right, because the order of torch's sum depends on the shape."""
    total = columns[:, :1]
    for column in range(1, columns.shape[1]):
        total = total + columns[:, column : column + 1]
    return total


def route(x: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """Chooses experts: x [M, H] float32 -> experts [M, K] int64, the best first, and their weights [M, K] float32.

    Raises: ValueError: shape or dtype does not fit.
    """
    M, groups = x.shape[0], routing.num_groups
    logits = linear(x, routing.weight)  # [M, E]
    # sigmoid is called for each row, because torch rounds the last elements of a tensor, which do not fill a vector
    # register, differently from the others.
    scores = torch.stack([row.sigmoid() for row in logits]) if M else logits
    ranked = scores + routing.bias
    if routing.num_chosen_groups < groups:
        grouped = ranked.view(M, groups, routing.weight.out_features // groups)
        best = grouped.topk(2, dim=-1).values
        kept = (best[..., 0] + best[..., 1]).topk(routing.num_chosen_groups, dim=-1).indices
        allowed = torch.zeros(M, groups, dtype=torch.bool, device=x.device).scatter_(1, kept, True)
        ranked = grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).flatten(1)
    chosen = ranked.topk(routing.num_chosen, dim=-1).indices
    weights = scores.gather(1, chosen)
    if routing.normalized:
        weights = weights / (_sum_in_order(weights) + 1e-20)
    return chosen, weights * routing.scale


def mix_experts(x: Tensor, chosen: Tensor, weights: Tensor, experts: tuple[Expert, ...]) -> Tensor:
    """Computes the weighted sum of each row's experts.

    Args:
        x: [M, H] in the experts' dtype.
        chosen: [M, K] int64, distinct in a row. weights: [M, K] float32.

    Returns: [M, H] float32.
    Raises: ValueError: shapes or dtypes do not fit.
    """
    check_tensor(chosen, "chosen", (x.shape[0], None), torch.int64)
    out = torch.zeros(x.shape, device=x.device)
    for index in chosen.unique().tolist():  # ascending
        rows, ranks = (chosen == index).nonzero(as_tuple=True)
        expert = experts[index]
        y = linear(swiglu(linear(x[rows], expert.gate_up), x.dtype), expert.down)  # [n, H]
        out[rows] += y * weights[rows, ranks].unsqueeze(1)
    return out
