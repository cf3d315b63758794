"""Grows draft trees on the device, and accepts their nodes, without synchronization with the host.

The tree of a sequence has N nodes, with parents before children. Its root is the last committed token, which is not
among the nodes and has the index -1. All results are integers or products of two float32 numbers, so kernel and
reference agree exactly.

    grow    Each depth has k candidate tokens, which can be children of every node of the previous depth. `grow_trees`
            selects the `budget` likeliest nodes, the likeliest first. Equally likely nodes are ordered by depth, then
            by the rank of their candidate, then by their parent.
    accept  `accept_trees` walks down from the root. The next node is the child with the token that the target has
            sampled after the current node. The slots of accepted nodes are written to the sequence's slot table.
            Their keys and values are not moved.

Source: JetSpec, arXiv:2606.18394.
"""

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.checks import check_tensor

_HeapEntry = tuple[np.float32, int, int, int, np.float32]  # (-survival, depth, rank, parent, survival of the parent)


@dataclass(frozen=True, slots=True)
class Trees:
    """The trees of B sequences.

    tokens, parents: [B, N] int64.
    survival: [B, N] float32. Estimated probability that a node is accepted.
    counts: [B] int64. Number of nodes of each tree. In the other tensors, entries beyond this number have the parent -2
        and are otherwise undefined.
    """

    tokens: Tensor
    parents: Tensor
    survival: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class Accepted:
    """Results of `accept_trees`.

    nodes: [B, N] int64, accepted nodes from the root down; -1 beyond the count.
    tokens: [B, N + 1] int64, the tokens of these nodes and then the token that the target sampled after the last
        accepted node; -1 beyond count + 1.
    counts: [B] int64, number of accepted nodes.
    """

    nodes: Tensor
    tokens: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The slots of the nodes, and the slot tables to which `accept_trees` writes the slots of accepted nodes.

    slot_tables: [S, L] int32, for S sequences of at most L positions. `accept_trees` writes to it.
    table_rows: [B] int64. Each tree's row of `slot_tables`.
    positions: [B] int64. Position of the root's children.
    node_slots: [B, N] int32. The slot of each node.
    """

    slot_tables: Tensor
    table_rows: Tensor
    positions: Tensor
    node_slots: Tensor


def grow_trees_reference(tokens: Tensor, chances: Tensor, budget: int) -> Trees:
    """Reference of `grow_trees`."""
    B = tokens.shape[0]
    out = Trees(
        tokens.new_zeros(B, budget),
        tokens.new_full((B, budget), -2),
        chances.new_zeros(B, budget),
        tokens.new_zeros(B),
    )
    for b in range(B):
        chance = chances[b].cpu().numpy()
        heap: list[_HeapEntry] = []
        _push(heap, chance, 0, 0, -1, np.float32(1.0))
        count = 0
        while heap and count < budget:
            negative, depth, rank, parent, parent_survival = heapq.heappop(heap)
            out.tokens[b, count], out.parents[b, count] = tokens[b, depth, rank], parent
            out.survival[b, count] = float(-negative)
            _push(heap, chance, depth + 1, 0, count, -negative)
            _push(heap, chance, depth, rank + 1, parent, parent_survival)
            count += 1
        out.counts[b] = count
    return out


def _push(
    heap: list[_HeapEntry], chance: NDArray[np.float32], depth: int, rank: int, parent: int, parent_survival: np.float32
) -> None:
    if depth < chance.shape[0] and rank < chance.shape[1]:
        heapq.heappush(heap, (-parent_survival * chance[depth, rank], depth, rank, parent, parent_survival))


def grow_trees(tokens: Tensor, chances: Tensor, budget: int) -> Trees:
    """Grows B trees. Their nodes are sorted by descending survival.

    Args:
        tokens: [B, depths, k] int64, candidates of each depth, best first.
        chances: [B, depths, k] float32, descending, in 0..1; a node's survival is the product along its path.

    Raises: ValueError: shapes or dtypes do not fit, or a budget below 1.
    """
    check_tensor(tokens, "tokens", (None, None, None), torch.int64)
    check_tensor(chances, "chances", tuple(tokens.shape), torch.float32)
    if budget < 1:
        raise ValueError(f"budget must be at least 1, got {budget}")
    if tokens.is_cuda:
        from kernels.cuda.tree import grow_trees as launch  # imported here, because triton requires CUDA

        return launch(tokens, chances, budget)
    return grow_trees_reference(tokens, chances, budget)


def accept_trees_reference(chosen: Tensor, trees: Trees, commit: Commit) -> Accepted:
    """Reference of `accept_trees`."""
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
                position = int(commit.positions[b]) + count
                commit.slot_tables[commit.table_rows[b], position] = commit.node_slots[b, node]
                count += 1
        out.counts[b] = count
    return out


def accept_trees(chosen: Tensor, trees: Trees, commit: Commit) -> Accepted:
    """Walks every tree from its root down and writes the accepted nodes' slots into the slot tables.

    Args:
        chosen: [B, N + 1] int64. The token that the target has sampled after the root, and after each node.

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
        from kernels.cuda.tree import accept_trees as launch  # imported here, because triton requires CUDA

        return launch(chosen, trees, commit)
    return accept_trees_reference(chosen, trees, commit)
