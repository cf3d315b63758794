"""The rows of a verify pass, laid out where draft trees and the sequences' lengths are: on the device.

Of each of B sequences its last token and the N nodes under it, in this order, so a pass has B (1 + N) rows. A node's
row stands as far below the last token as it has ancestors, and attends to the committed positions, to its ancestors
from the top and to itself.

Everything is a whole number, so a device and its reference agree exactly.
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
    """Of B sequences.

    slot_tables: [S, L] int32; where the last token's slot gets written.
    table_rows, lengths, tokens: [B] int64. Row of the tables, number of tokens, the last of them.
    slots: [B, 1 + N] int32. Of the last token, then of each node; what is nobody's may share one.
    """

    slot_tables: Tensor
    table_rows: Tensor
    lengths: Tensor
    tokens: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class TreeRows:
    """tokens: [B (1 + N)] int64, 0 where there is no node."""

    tokens: Tensor
    rows: DecoderRows


def tree_rows_reference(trees: Trees, roots: Roots, *, depth: int, last_position: int) -> TreeRows:
    """As `tree_rows`."""
    B, N = trees.tokens.shape
    lengths, device = roots.lengths, trees.tokens.device
    roots.slot_tables[roots.table_rows, lengths - 1] = roots.slots[:, 0]
    nodes = torch.arange(N, device=device).expand(B, N)
    real = nodes < trees.counts.unsqueeze(1)
    parents = torch.where(real, trees.parents, -1)
    upwards = [nodes]  # each node, its parent, and so on; -1 above the top
    for _ in range(depth - 1 if N else 0):
        parent = parents.gather(1, upwards[-1].clamp(min=0))
        upwards.append(torch.where(upwards[-1] >= 0, parent, -1))
    chains = torch.stack(upwards, -1)  # [B, N, depth]
    levels = (chains >= 0).sum(-1)  # [B, N]
    places = (levels.unsqueeze(-1) - 1 - torch.arange(chains.shape[-1], device=device)).clamp(min=0)
    node_slots = roots.slots[:, 1:].unsqueeze(-1).expand(chains.shape)
    downwards = node_slots.gather(1, chains.gather(-1, places).clamp(min=0)) if N else node_slots
    paths = torch.zeros(B, 1 + N, depth, dtype=torch.int32, device=device)
    paths[:, 1:, : downwards.shape[-1]] = downwards
    below = torch.cat([levels.new_zeros(B, 1), torch.where(real, levels, 0)], dim=1)  # [B, 1 + N]
    tokens = torch.cat([roots.tokens.unsqueeze(1), torch.where(real, trees.tokens, 0)], dim=1)
    positions = (lengths.unsqueeze(1) - 1 + below).clamp(max=last_position)
    path_lens = torch.cat([levels.new_zeros(B, 1), levels], dim=1)
    attention = AttentionRows(
        slot_tables=roots.slot_tables,
        seqs=roots.table_rows.repeat_interleave(1 + N),
        prefix_lens=lengths.repeat_interleave(1 + N),
        paths=paths.view(-1, depth),
        path_lens=path_lens.flatten(),
    )
    return TreeRows(tokens.flatten(), DecoderRows(positions.flatten(), roots.slots.long().flatten(), attention))


def tree_rows(trees: Trees, roots: Roots, *, depth: int, last_position: int) -> TreeRows:
    """Names the last tokens' slots in the tables and lays out the pass.

    Args:
        trees: [B, N], N may be 0; no node deeper than `depth`. What lies beyond a count gets a row that sees the
            committed positions and itself, for nobody to read.
        depth: how long a path may be, at least 1.
        last_position: positions beyond it are taken for it: an answer's surplus may go past the model's end.

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
        from kernels.cuda.tree_rows import tree_rows as launch  # not above: triton is only where CUDA is

        return launch(trees, roots, depth=depth, last_position=last_position)
    return tree_rows_reference(trees, roots, depth=depth, last_position=last_position)
