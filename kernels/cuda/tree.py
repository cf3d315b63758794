"""Grows and accepts draft trees on CUDA, with one program per sequence.

While a tree grows, the program has a list of candidates for the next node. When a candidate is selected, its next
sibling replaces it in the list, and its first child is added as a new entry. So the list has one entry more than the
tree has nodes. The key of a candidate is an integer that encodes its depth, rank and parent. Equally likely candidates
are ordered by their keys.
"""

import torch
import triton
import triton.language as tl

from kernels.tree import Accepted, Commit, Trees


@triton.jit
def _grow_kernel(
    tokens_ptr,
    chances_ptr,
    out_tokens_ptr,
    out_parents_ptr,
    out_survival_ptr,
    counts_ptr,
    budget,
    DEPTHS: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    LAST: tl.constexpr = DEPTHS * K * BLOCK  # at least as large as any key
    b = tl.program_id(0).to(tl.int64)
    first_candidate = b * DEPTHS * K
    entry = tl.arange(0, BLOCK)
    survival = tl.where(entry == 0, tl.load(chances_ptr + first_candidate), -1.0)  # -1 marks an empty entry
    parent_survival = tl.full((BLOCK,), 1.0, tl.float32)
    key = tl.full((BLOCK,), 0, tl.int32)  # (depth K + rank) BLOCK + parent + 1
    count = tl.full((), 0, tl.int64)
    for node in range(budget):
        best = tl.max(survival, 0)
        selected = tl.min(tl.where(survival == best, key, LAST), 0)
        is_selected = (survival == best) & (key == selected)
        candidate, parent = selected // BLOCK, selected % BLOCK - 1
        depth, rank = candidate // K, candidate % K
        real = best >= 0.0  # whether a candidate remains
        out = b * budget + node
        tl.store(out_tokens_ptr + out, tl.load(tokens_ptr + first_candidate + candidate, mask=real, other=0))
        tl.store(out_parents_ptr + out, tl.where(real, parent, -2).to(tl.int64))
        tl.store(out_survival_ptr + out, tl.where(real, best, 0.0))
        count += real.to(tl.int64)

        sibling = tl.load(chances_ptr + first_candidate + candidate + 1, mask=real & (rank + 1 < K), other=-1.0)
        survival = tl.where(is_selected, tl.where(sibling < 0.0, -1.0, parent_survival * sibling), survival)
        key = tl.where(is_selected, selected + BLOCK, key)
        child = tl.load(chances_ptr + first_candidate + (depth + 1) * K, mask=real & (depth + 1 < DEPTHS), other=-1.0)
        new = entry == node + 1
        survival = tl.where(new, tl.where(child < 0.0, -1.0, best * child), survival)
        parent_survival = tl.where(new, best, parent_survival)
        key = tl.where(new, (depth + 1) * K * BLOCK + node + 1, key)
    tl.store(counts_ptr + b, count)


def grow_trees(tokens: torch.Tensor, chances: torch.Tensor, budget: int) -> Trees:
    """Implements `kernels.tree.grow_trees` on CUDA; that function has checked the arguments."""
    B, depths, k = tokens.shape
    trees = Trees(
        tokens.new_empty(B, budget),
        tokens.new_empty(B, budget),
        chances.new_empty(B, budget),
        tokens.new_empty(B),
    )
    if B:
        block = triton.next_power_of_2(budget + 1)
        _grow_kernel[(B,)](
            tokens,
            chances,
            trees.tokens,
            trees.parents,
            trees.survival,
            trees.counts,
            budget,
            DEPTHS=depths,
            K=k,
            BLOCK=block,
            num_warps=min(8, max(1, block // 128)),
        )
    return trees


@triton.jit
def _accept_kernel(
    chosen_ptr,
    tokens_ptr,
    parents_ptr,
    tree_counts_ptr,
    nodes_ptr,
    out_tokens_ptr,
    counts_ptr,
    tables_ptr,
    table_rows_ptr,
    positions_ptr,
    node_slots_ptr,
    N,
    table_stride,
    BLOCK: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, BLOCK)
    real = node < tl.load(tree_counts_ptr + b)
    tokens = tl.load(tokens_ptr + b * N + node, mask=real, other=-1)
    parents = tl.load(parents_ptr + b * N + node, mask=real, other=-2)
    path = tl.full((BLOCK,), -1, tl.int64)
    path_tokens = tl.full((BLOCK,), -1, tl.int64)
    current = -1  # the root
    count = tl.full((), 0, tl.int64)
    accepted = True
    while accepted:
        token = tl.load(chosen_ptr + b * (N + 1) + current + 1)
        path_tokens = tl.where(node == count, token, path_tokens)
        current = tl.max(tl.where(real & (parents == current) & (tokens == token), node, -1), 0)
        path = tl.where(node == count, current, path)
        accepted = current >= 0
        count += accepted.to(tl.int64)
    kept = node < count
    slots = tl.load(node_slots_ptr + b * N + path, mask=kept, other=0)
    table = tables_ptr + tl.load(table_rows_ptr + b) * table_stride + tl.load(positions_ptr + b)
    tl.store(table + node, slots, mask=kept)
    tl.store(nodes_ptr + b * N + node, path, mask=node < N)
    tl.store(out_tokens_ptr + b * (N + 1) + node, path_tokens, mask=node < N + 1)
    tl.store(counts_ptr + b, count)


def accept_trees(chosen: torch.Tensor, trees: Trees, commit: Commit) -> Accepted:
    """Implements `kernels.tree.accept_trees` on CUDA; that function has checked the arguments."""
    B, N = trees.tokens.shape
    out = Accepted(chosen.new_empty(B, N), chosen.new_empty(B, N + 1), chosen.new_empty(B))
    if B:
        block = triton.next_power_of_2(N + 1)
        _accept_kernel[(B,)](
            chosen,
            trees.tokens,
            trees.parents,
            trees.counts,
            out.nodes,
            out.tokens,
            out.counts,
            commit.slot_tables,
            commit.table_rows,
            commit.positions,
            commit.node_slots,
            N,
            commit.slot_tables.shape[1],
            BLOCK=block,
            num_warps=min(8, max(1, block // 128)),
        )
    return out
