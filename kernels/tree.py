"""Draft trees where they are drafted and verified: grown, accepted and committed without the host.

A tree of a sequence is N nodes, parents before children; parent -1 is the last committed token. Everything is a whole
number, or one product of two float32, so a device and its reference agree exactly.

    grow    the `budget` likeliest nodes when depth d offers the same candidates under every node: best first, and of
            equals the one that is higher, then better ranked, then of the earlier parent
    accept  from the root down to the child that equals the token chosen at its parent, as long as there is one
    commit  the slots of accepted nodes go into the sequence's table; keys and values stay where they are

Source: JetSpec, arXiv:2606.18394.
"""

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.checks import check_tensor

_Offer = tuple[np.float32, int, int, int, np.float32]  # (-survival, depth, rank, parent, its survival)


@dataclass(frozen=True, slots=True)
class Trees:
    """Of B sequences. tokens, parents: [B, N] int64; survival: [B, N] float32; counts: [B] int64 nodes there are.

    What lies beyond a count has parent -2 and means nothing.
    """

    tokens: Tensor
    parents: Tensor
    survival: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class Accepted:
    """nodes: [B, N] int64, top down. tokens: [B, N + 1] int64, theirs and the one the target adds. counts: [B] nodes.

    What lies beyond a count (of tokens: one more) is -1.
    """

    nodes: Tensor
    tokens: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Where accepted nodes go.

    slot_tables: [S, L] int32, written. table_rows: [B] int64. positions: [B] int64, of the first node under the root.
    node_slots: [B, N] int32.
    """

    slot_tables: Tensor
    table_rows: Tensor
    positions: Tensor
    node_slots: Tensor


def grow_trees_reference(tokens: Tensor, chances: Tensor, budget: int) -> Trees:
    """As `grow_trees`."""
    B = tokens.shape[0]
    out = Trees(
        tokens.new_zeros(B, budget),
        tokens.new_full((B, budget), -2),
        chances.new_zeros(B, budget),
        tokens.new_zeros(B),
    )
    for b in range(B):
        chance = chances[b].cpu().numpy()
        heap: list[_Offer] = []
        _offer(heap, chance, 0, 0, -1, np.float32(1.0))
        count = 0
        while heap and count < budget:
            negative, depth, rank, parent, above = heapq.heappop(heap)
            out.tokens[b, count], out.parents[b, count] = tokens[b, depth, rank], parent
            out.survival[b, count] = float(-negative)
            _offer(heap, chance, depth + 1, 0, count, -negative)
            _offer(heap, chance, depth, rank + 1, parent, above)
            count += 1
        out.counts[b] = count
    return out


def _offer(
    heap: list[_Offer], chance: NDArray[np.float32], depth: int, rank: int, parent: int, above: np.float32
) -> None:
    if depth < chance.shape[0] and rank < chance.shape[1]:
        heapq.heappush(heap, (-above * chance[depth, rank], depth, rank, parent, above))


def grow_trees(tokens: Tensor, chances: Tensor, budget: int) -> Trees:
    """Best first.

    Args:
        tokens: [B, depths, k] int64, candidates of each depth, best first.
        chances: [B, depths, k] float32, theirs, descending, in 0..1; a node's survival is the product down its path.

    Raises: ValueError: shapes or dtypes do not fit, or a budget below 1.
    """
    check_tensor(tokens, "tokens", (None, None, None), torch.int64)
    check_tensor(chances, "chances", tuple(tokens.shape), torch.float32)
    if budget < 1:
        raise ValueError(f"budget must be at least 1, got {budget}")
    if tokens.is_cuda:
        from kernels.cuda.tree import grow_trees as launch  # not above: triton is only where CUDA is

        return launch(tokens, chances, budget)
    return grow_trees_reference(tokens, chances, budget)


def accept_trees_reference(chosen: Tensor, trees: Trees, commit: Commit) -> Accepted:
    """As `accept_trees`."""
    B, N = trees.tokens.shape
    out = Accepted(trees.tokens.new_full((B, N), -1), chosen.new_full((B, N + 1), -1), trees.counts.clone())
    for b in range(B):
        real = range(int(trees.counts[b]))
        children = {(int(trees.parents[b, node]), int(trees.tokens[b, node])): node for node in real}
        node: int | None = -1
        count = 0
        while node is not None:
            token = int(chosen[b, node + 1])
            out.tokens[b, count] = token
            node = children.get((node, token))
            if node is not None:
                out.nodes[b, count] = node
                place = int(commit.positions[b]) + count
                commit.slot_tables[commit.table_rows[b], place] = commit.node_slots[b, node]
                count += 1
        out.counts[b] = count
    return out


def accept_trees(chosen: Tensor, trees: Trees, commit: Commit) -> Accepted:
    """Walks every tree down and writes the accepted nodes' slots into the tables.

    Args:
        chosen: [B, N + 1] int64. The target's token at the root, then at each node.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    B, N = trees.tokens.shape
    check_tensor(trees.tokens, "tokens", (B, N), torch.int64)
    check_tensor(trees.parents, "parents", (B, N), torch.int64)
    check_tensor(trees.counts, "counts", (B,), torch.int64)
    check_tensor(chosen, "chosen", (B, N + 1), torch.int64)
    check_tensor(commit.slot_tables, "slot_tables", (None, None), torch.int32)
    check_tensor(commit.table_rows, "table_rows", (B,), torch.int64)
    check_tensor(commit.positions, "positions", (B,), torch.int64)
    check_tensor(commit.node_slots, "node_slots", (B, N), torch.int32)
    if chosen.is_cuda:
        from kernels.cuda.tree import accept_trees as launch  # not above: triton is only where CUDA is

        return launch(chosen, trees, commit)
    return accept_trees_reference(chosen, trees, commit)
