"""Computes the input rows of a verify pass on the device, from the draft trees and the lengths of the sequences.

A pass has B (1 + N) rows: for each of B sequences, its last token and then the N nodes of its tree. If a tree has fewer
nodes, its last rows are rows without a node, whose results are ignored. The position of a node is the position of the
last token plus the node's depth. A node attends to the committed positions, to its ancestors from the top down, and to
itself.

All values are integers, so kernel and reference agree exactly.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention import AttentionRows
from kernels.checks import check_tensor
from kernels.decoder import DecoderRows
from kernels.tree import Trees


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The last tokens of B sequences, which are the roots of their trees.

    slot_tables: [S, L] int32, for S sequences of at most L positions. The slot of the last token is written to it.
    table_rows, lengths, tokens: [B] int64. Row of `slot_tables`, number of tokens, last token.
    slots: [B, 1 + N] int32. Slots of the last token and of each node. Rows without a node may have the same slot.
    max_keys: upper bound of the length of a sequence plus the depth of its tree; None: L.
    """

    slot_tables: Tensor
    table_rows: Tensor
    lengths: Tensor
    tokens: Tensor
    slots: Tensor
    max_keys: int | None = None


@dataclass(frozen=True, slots=True)
class TreeRows:
    """Input of the verify pass. tokens: [B (1 + N)] int64, 0 for rows without a node."""

    tokens: Tensor
    rows: DecoderRows


def tree_rows_reference(trees: Trees, roots: Roots, *, depth: int, last_position: int) -> TreeRows:
    """Reference of `tree_rows`."""
    B, N = trees.tokens.shape
    lengths, device = roots.lengths, trees.tokens.device
    roots.slot_tables[roots.table_rows, lengths - 1] = roots.slots[:, 0]
    nodes = torch.arange(N, device=device).expand(B, N)
    real = nodes < trees.counts.unsqueeze(1)
    parents = torch.where(real, trees.parents, -1)
    upwards = [nodes]  # depth tensors [B, N]: each node, its parent, and so on; -1 where the path has reached the root
    for _ in range(depth - 1 if N else 0):
        parent = parents.gather(1, upwards[-1].clamp(min=0))
        upwards.append(torch.where(upwards[-1] >= 0, parent, -1))
    chains = torch.stack(upwards, -1)  # [B, N, depth]
    levels = (chains >= 0).sum(-1)  # [B, N]: length of each node's path; 1 for entries beyond the count
    # `chains` lists a path upwards. The indices levels - 1, levels - 2, ... reverse it, so it begins at the top.
    reversed_index = (levels.unsqueeze(-1) - 1 - torch.arange(chains.shape[-1], device=device)).clamp(min=0)
    node_slots = roots.slots[:, 1:].unsqueeze(-1).expand(chains.shape)
    downwards = node_slots.gather(1, chains.gather(-1, reversed_index).clamp(min=0)) if N else node_slots
    paths = torch.zeros(B, 1 + N, depth, dtype=torch.int32, device=device)
    paths[:, 1:, : downwards.shape[-1]] = downwards
    depths = torch.cat([levels.new_zeros(B, 1), torch.where(real, levels, 0)], dim=1)  # [B, 1 + N]
    tokens = torch.cat([roots.tokens.unsqueeze(1), torch.where(real, trees.tokens, 0)], dim=1)
    positions = (lengths.unsqueeze(1) - 1 + depths).clamp(max=last_position)
    path_lens = torch.cat([levels.new_zeros(B, 1), levels], dim=1)
    attention = AttentionRows(
        slot_tables=roots.slot_tables,
        seqs=roots.table_rows.repeat_interleave(1 + N),
        prefix_lens=lengths.repeat_interleave(1 + N),
        paths=paths.view(-1, depth),
        path_lens=path_lens.flatten(),
        max_seqs=B,
        max_keys=roots.max_keys,
    )
    return TreeRows(tokens.flatten(), DecoderRows(positions.flatten(), roots.slots.long().flatten(), attention))


def tree_rows(trees: Trees, roots: Roots, *, depth: int, last_position: int) -> TreeRows:
    """Returns the rows of the verify pass, and writes the last tokens' slots to the slot tables.

    Args:
        trees: [B, N]; N may be 0. Rows without a node attend to the committed positions and to themselves.
        depth: maximum depth of a node, at least 1.
        last_position: the model's last position. A draft may exceed it; larger positions are replaced by it.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    B, N = trees.tokens.shape
    check_tensor(trees.tokens, "tokens", (B, N), torch.int64)
    check_tensor(trees.parents, "parents", (B, N), torch.int64)
    check_tensor(trees.counts, "counts", (B,), torch.int64)
    check_tensor(roots.slot_tables, "slot_tables", (None, None), torch.int32)
    check_tensor(roots.table_rows, "table_rows", (B,), torch.int64)
    check_tensor(roots.lengths, "lengths", (B,), torch.int64)
    check_tensor(roots.tokens, "last tokens", (B,), torch.int64)
    check_tensor(roots.slots, "slots", (B, 1 + N), torch.int32)
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    if trees.tokens.is_cuda:
        from kernels.cuda.tree_rows import tree_rows as launch  # imported here, because triton requires CUDA

        return launch(trees, roots, depth=depth, last_position=last_position)
    return tree_rows_reference(trees, roots, depth=depth, last_position=last_position)
