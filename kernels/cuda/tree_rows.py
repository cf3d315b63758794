"""Computes the input rows of a verify pass on CUDA.

One program per row walks twice from the row's node to the root: first to count the levels, then to write the path.
"""

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionRows
from kernels.decoder import DecoderRows
from kernels.tree import Trees
from kernels.tree_rows import Roots, TreeRows


@triton.jit(do_not_specialize=["N", "depth", "last_position"])
def _rows_kernel(
    tree_tokens_ptr,
    parents_ptr,
    counts_ptr,
    tables_ptr,
    table_rows_ptr,
    lengths_ptr,
    root_tokens_ptr,
    node_slots_ptr,
    integers_ptr,
    paths_ptr,
    N,
    depth,
    last_position,
    table_stride,
):
    b, index = tl.program_id(0).to(tl.int64), tl.program_id(1)  # index 0 is the last token, index n + 1 is node n
    num_rows = tl.num_programs(0).to(tl.int64) * tl.num_programs(1)
    row = b * tl.num_programs(1) + index
    node = index.to(tl.int64) - 1
    seq, length = tl.load(table_rows_ptr + b), tl.load(lengths_ptr + b)
    slot = tl.load(node_slots_ptr + row)
    real = (node >= 0) & (node < tl.load(counts_ptr + b))
    token = tl.load(root_tokens_ptr + b)
    if node >= 0:
        token = tl.load(tree_tokens_ptr + b * N + node, mask=real, other=0)
    else:
        tl.store(tables_ptr + seq * table_stride + length - 1, slot)

    levels = tl.full((), 0, tl.int64)
    current = tl.where(real, node, -1)
    while current >= 0:
        levels += 1
        current = tl.load(parents_ptr + b * N + current)
    path = paths_ptr + row * depth
    for level in range(0, depth):
        tl.store(path + level, 0)
    if (node >= 0) & (levels == 0):
        tl.store(path, slot)  # a row without a node attends to itself
    current = tl.where(real, node, -1)
    remaining = levels
    while current >= 0:
        remaining -= 1
        tl.store(path + remaining, tl.load(node_slots_ptr + b * tl.num_programs(1) + 1 + current))
        current = tl.load(parents_ptr + b * N + current)

    tl.store(integers_ptr + row, token)
    tl.store(integers_ptr + num_rows + row, tl.minimum(length - 1 + levels, last_position))
    tl.store(integers_ptr + 2 * num_rows + row, slot.to(tl.int64))
    tl.store(integers_ptr + 3 * num_rows + row, seq)
    tl.store(integers_ptr + 4 * num_rows + row, length)
    tl.store(integers_ptr + 5 * num_rows + row, tl.where((node >= 0) & (levels == 0), 1, levels))


def tree_rows(trees: Trees, roots: Roots, *, depth: int, last_position: int) -> TreeRows:
    """Implements `kernels.tree_rows.tree_rows` on CUDA; that function has checked the arguments."""
    B, N = trees.tokens.shape
    M = B * (1 + N)
    integers = torch.empty(6, M, dtype=torch.int64, device=trees.tokens.device)
    paths = torch.empty(M, depth, dtype=torch.int32, device=trees.tokens.device)
    if M:
        _rows_kernel[(B, 1 + N)](
            trees.tokens,
            trees.parents,
            trees.counts,
            roots.slot_tables,
            roots.table_rows,
            roots.lengths,
            roots.tokens,
            roots.slots,
            integers,
            paths,
            N,
            depth,
            last_position,
            roots.slot_tables.shape[1],
            num_warps=1,
        )
    tokens, positions, slots, seqs, prefix_lens, path_lens = integers.unbind()
    attention = AttentionRows(roots.slot_tables, seqs, prefix_lens, paths, path_lens, B, roots.max_keys)
    return TreeRows(tokens, DecoderRows(positions, slots, attention))
