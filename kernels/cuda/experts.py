"""Mixtures of experts on CUDA, without host synchronization.

The pairs of a row and an expert are sorted by expert on the device, and each expert's pairs are divided into tiles of
16. A program computes a product for one tile, one block of outputs and one split of the summed axis, with the same
instruction as in cuda/linear.py. The bits of a pair therefore do not depend on its place, the index after sorting.

Shape letters: M rows, K experts per row, P = M K pairs, E experts, H the hidden size, I the intermediate size. In
products, K is the length of the summed axis and N the number of outputs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.linear import BLOCK_N, ROW_TILE, num_splits, product_tiles
from kernels.cuda.row_tiles import row_tiles
from kernels.experts import Experts, Stack

_BLOCK_K = 64
_BLOCK = 1024
_STAGES = 4


@triton.jit
def _route_kernel(
    logits_ptr,
    chosen_ptr,
    weights_ptr,
    E,
    K: tl.constexpr,
    RANKS: tl.constexpr,
    NORMALIZED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    rank = tl.arange(0, RANKS)
    logits = tl.load(logits_ptr + row * E + expert, mask=expert < E, other=float("-inf"))
    top = tl.max(logits, 0)
    total = tl.sum(tl.exp(logits - top), 0)
    exponentials = tl.zeros(rank.shape, tl.float32)
    for k in tl.static_range(K):
        largest = tl.max(logits, 0)
        best = tl.min(tl.where(logits == largest, expert, BLOCK), 0)
        tl.store(chosen_ptr + row * K + k, best.to(tl.int64))
        exponentials = tl.where(rank == k, tl.exp(largest - top), exponentials)
        logits = tl.where(expert == best, float("-inf"), logits)
    total = tl.sum(exponentials, 0) if NORMALIZED else total
    tl.store(weights_ptr + row * K + rank, exponentials / total, mask=rank < K)


@triton.jit
def _expert_product_kernel(
    x_ptr,
    weight_ptr,
    experts_ptr,
    tiles_ptr,
    sums_ptr,
    P,
    N,
    K,
    SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROW_TILE: tl.constexpr,
    WHOLE: tl.constexpr,
):
    first = tl.load(tiles_ptr + 2 * tl.program_id(0)).to(tl.int64)
    end = first + tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
    if first == end:
        return
    places = first + tl.arange(0, ROW_TILE)
    columns = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2).to(tl.int64)
    weight = weight_ptr + tl.load(experts_ptr + first) * N * K
    totals = product_tiles(x_ptr, weight, places, columns, split * SPLIT, end, N, K, SPLIT, BLOCK_K, 1, WHOLE)
    offsets = (split * P + places[None, :]) * N + columns[:, None]
    tl.store(sums_ptr + offsets, totals[0], mask=(places < end)[None, :] & (columns < N)[:, None])


@triton.jit
def _load_pair(sums_ptr, scales_ptr, bias_ptr, expert, place, columns, mask, N, split_stride, NUM_SPLITS: tl.constexpr):
    """Computes the columns of a pair's product from its splits."""
    offsets = place * N + columns
    total = tl.load(sums_ptr + offsets, mask=mask, other=0.0)
    for split in tl.static_range(1, NUM_SPLITS):
        total += tl.load(sums_ptr + split * tl.cast(split_stride, tl.int64) + offsets, mask=mask, other=0.0)
    if scales_ptr is not None:
        total *= tl.load(scales_ptr + expert * N + columns, mask=mask, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + expert * N + columns, mask=mask, other=0.0)
    return total


@triton.jit
def _expert_gate_kernel(
    sums_ptr,
    scales_ptr,
    bias_ptr,
    experts_ptr,
    out_ptr,
    width,
    split_stride,
    alpha,
    limit,
    NUM_SPLITS: tl.constexpr,
    CLAMPED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask, expert, N = column < width, tl.load(experts_ptr + place), 2 * width
    gate = _load_pair(sums_ptr, scales_ptr, bias_ptr, expert, place, column, mask, N, split_stride, NUM_SPLITS)
    up = _load_pair(sums_ptr, scales_ptr, bias_ptr, expert, place, column + width, mask, N, split_stride, NUM_SPLITS)
    if CLAMPED:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up)) + 1.0
        out = gate / (1.0 + tl.exp(-alpha * gate)) * up
    else:
        out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + place * width + column, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _add_experts_kernel(
    sums_ptr,
    scales_ptr,
    bias_ptr,
    experts_ptr,
    places_ptr,
    weights_ptr,
    add_to_ptr,
    out_ptr,
    N,
    split_stride,
    K: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < N
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(K):  # the experts of a row are in ascending order
        place = tl.load(places_ptr + row * K + k)
        expert = tl.load(experts_ptr + place)
        pair = _load_pair(sums_ptr, scales_ptr, bias_ptr, expert, place, column, mask, N, split_stride, NUM_SPLITS)
        total += tl.load(weights_ptr + row * K + k) * pair
    if add_to_ptr is not None:
        total += tl.load(add_to_ptr + row * N + column, mask=mask)
    tl.store(out_ptr + row * N + column, total, mask=mask)


def route_softmax(logits: Tensor, num_chosen: int, normalized: bool) -> tuple[Tensor, Tensor]:
    """Implements `kernels.moe.route_softmax` on CUDA; that function has checked the arguments."""
    M, E = logits.shape
    chosen = torch.empty(M, num_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(M, num_chosen, dtype=torch.float32, device=logits.device)
    if M:
        blocks = {"RANKS": triton.next_power_of_2(num_chosen), "BLOCK": triton.next_power_of_2(E)}
        _route_kernel[(M,)](logits, chosen, weights, E, K=num_chosen, NORMALIZED=normalized, **blocks)
    return chosen, weights


def _product(x: Tensor, stack: Stack, experts: Tensor, tiles: Tensor) -> Tensor:
    """Returns the splits of each pair's product, [splits, P, N] float32. x: [P, K], sorted by expert."""
    (P, K), N = x.shape, stack.data.shape[1]
    splits = num_splits(N, K)
    split = -(-K // (splits * _BLOCK_K)) * _BLOCK_K
    sums = torch.empty(splits, P, N, dtype=torch.float32, device=x.device)
    _expert_product_kernel[(tiles.shape[0], -(-N // BLOCK_N), splits)](
        x,
        stack.data,
        experts,
        tiles,
        sums,
        P,
        N,
        K,
        SPLIT=split,
        BLOCK_N=BLOCK_N,
        BLOCK_K=_BLOCK_K,
        ROW_TILE=ROW_TILE,
        WHOLE=split * splits == K,
        num_warps=4,
        num_stages=_STAGES,
    )
    return sums


def mix_experts(x: Tensor, chosen: Tensor, weights: Tensor, experts: Experts, add_to: Tensor | None = None) -> Tensor:
    """Implements `kernels.experts.mix_experts` on CUDA; that function has checked the arguments."""
    (M, H), K, width = x.shape, chosen.shape[1], experts.down.data.shape[2]
    out = torch.empty(M, H, dtype=torch.float32, device=x.device) if add_to is None else add_to
    if not M:
        return out
    ascending, ranks = chosen.sort(dim=1)
    sorted_experts, order = ascending.flatten().sort(stable=True)  # both [P]
    places = torch.empty_like(order)
    places[order] = torch.arange(M * K, device=x.device)
    tiles = row_tiles(sorted_experts, ROW_TILE, len(experts.experts))
    sums = _product(x[order // K], experts.gate_up, sorted_experts, tiles)
    activated = torch.empty(M * K, width, dtype=x.dtype, device=x.device)
    gate = experts.gate
    _expert_gate_kernel[(M * K, -(-width // _BLOCK))](
        sums,
        experts.gate_up.scales,
        experts.gate_up.bias,
        sorted_experts,
        activated,
        width,
        sums[0].numel(),
        0.0 if gate is None else gate.alpha,
        0.0 if gate is None else gate.limit,
        NUM_SPLITS=sums.shape[0],
        CLAMPED=gate is not None,
        BLOCK=_BLOCK,
    )
    sums = _product(activated, experts.down, sorted_experts, tiles)
    _add_experts_kernel[(M, -(-H // _BLOCK))](
        sums,
        experts.down.scales,
        experts.down.bias,
        sorted_experts,
        places,
        weights.gather(1, ranks),
        add_to,
        out,
        H,
        sums[0].numel(),
        K=K,
        NUM_SPLITS=sums.shape[0],
        BLOCK=_BLOCK,
    )
    return out
