"""Mixtures of experts: how a row chooses its experts. `kernels.experts` computes their weighted sum.

Mixtral and Qwen3-MoE (`Mixture`):

    p = softmax(x W_r)                          over the E experts
    out = sum_k weight_k expert_k(x)            over the K experts with the largest p; weight_k is p_k, optionally
                                                normalized to a sum of 1

DeepSeek-V3 (`Routing`):

    s = sigmoid(x W_r)                          the scores of the E experts, which form groups of equal size
    out = sum_k weight_k expert_k(x)            over the K experts with the largest s + bias in the best groups;
                                                weight_k is s_k, optionally normalized to a sum of 1, then scaled

A group is ranked by the sum of its two largest values of s + bias. A row has the same bits in any batch.

Source: Mixtral, arXiv:2401.04088, section 2.1; DeepSeek-V3, arXiv:2412.19437, section 2.1.2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.checks import check_tensor
from kernels.cpu.library import library
from kernels.experts import Experts, mix_experts
from kernels.linear import LinearWeight, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How DeepSeek-V3 chooses experts. num_chosen is K.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A layer's mixture of experts in Mixtral and Qwen3-MoE. router: [E, H]. num_chosen is K."""

    router: LinearWeight
    num_chosen: int
    normalized: bool
    experts: Experts


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


def route_softmax_reference(logits: Tensor, num_chosen: int, normalized: bool) -> tuple[Tensor, Tensor]:
    """Reference of `route_softmax`. It computes each row separately, because torch's sums depend on the shape."""
    chosen = torch.empty(logits.shape[0], num_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(chosen.shape, device=logits.device)
    for row, row_logits in enumerate(logits):
        best = row_logits.topk(num_chosen)
        chosen[row] = best.indices
        weights[row] = best.values.softmax(0) if normalized else row_logits.softmax(0)[best.indices]
    return chosen, weights


def route_softmax(logits: Tensor, num_chosen: int, *, normalized: bool) -> tuple[Tensor, Tensor]:
    """Chooses the K = `num_chosen` experts with the largest logits. With `normalized`, a row's weights have the sum 1.

    Args:
        logits: [M, E] float32.

    Returns: experts [M, K] int64, the best first, and their weights [M, K] float32.
    Raises: ValueError: shape or dtype does not fit.
    """
    M, E = logits.shape
    check_tensor(logits, "logits", (M, E), torch.float32)
    if not 1 <= num_chosen <= E:
        raise ValueError(f"num_chosen must be in 1..{E}, got {num_chosen}")
    if logits.is_cuda:
        from kernels.cuda.experts import route_softmax as launch  # imported here, because triton requires CUDA

        return launch(logits, num_chosen, normalized)
    kernels = library()
    if kernels is None:
        return route_softmax_reference(logits, num_chosen, normalized)
    chosen, weights = torch.empty(M, num_chosen, dtype=torch.int64), torch.empty(M, num_chosen)
    kernels.slipstream_route(
        logits.data_ptr(), chosen.data_ptr(), weights.data_ptr(), M, E, num_chosen, int(normalized)
    )
    return chosen, weights


def mix(x: Tensor, mixture: Mixture, *, add_to: Tensor) -> None:
    """Adds the mixture of x [M, H], in the weights' dtype, to `add_to` [M, H] float32."""
    chosen, weights = route_softmax(linear(x, mixture.router), mixture.num_chosen, normalized=mixture.normalized)
    mix_experts(x, chosen, weights, mixture.experts, add_to=add_to)
