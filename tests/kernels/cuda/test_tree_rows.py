"""The CUDA kernel computes the same rows of a verify pass as its reference, which agrees with the engine's `Draft`."""

from dataclasses import replace

import pytest
import torch

from engine.draft import Draft
from kernels.cuda.tree_rows import tree_rows
from kernels.tree import Trees
from kernels.tree_rows import Roots, TreeRows, tree_rows_reference
from tests.kernels.cuda.device import DEVICE

LAST_POSITION = 40


def make_trees(B: int, N: int, *, depth: int) -> tuple[Trees, Roots]:
    """Returns random trees of B sequences, with at most N nodes and this depth. Unused entries have the token -7."""
    generator = torch.Generator().manual_seed(B * 1000 + N)
    counts = torch.randint(0, N + 1, (B,), generator=generator)
    parents = torch.full((B, N), -2)
    for b in range(B):
        depths = {-1: 0}  # depth of each node; -1 is the root
        for node in range(int(counts[b])):
            allowed = [candidate for candidate, its_depth in depths.items() if its_depth < depth]
            parent = allowed[int(torch.randint(0, len(allowed), (1,), generator=generator))]
            parents[b, node], depths[node] = parent, depths[parent] + 1
    tokens = torch.randint(1, 99, (B, N), generator=generator)
    tokens[parents == -2] = -7
    roots = Roots(
        slot_tables=torch.full((B + 3, 64), -7, dtype=torch.int32, device=DEVICE),
        table_rows=(torch.randperm(B + 3, generator=generator)[:B]).to(DEVICE),
        lengths=torch.randint(1, LAST_POSITION, (B,), generator=generator).to(DEVICE),
        tokens=torch.randint(1, 99, (B,), generator=generator).to(DEVICE),
        slots=torch.randperm(B * (1 + N), generator=generator).int().view(B, 1 + N).to(DEVICE),
    )
    trees = Trees(tokens.to(DEVICE), parents.to(DEVICE), torch.zeros(B, N, device=DEVICE), counts.to(DEVICE))
    return trees, roots


def comparable_tensors(rows: TreeRows) -> list[torch.Tensor]:
    """Returns all tensors of the rows, with zeros in place of undefined path entries."""
    attention = rows.rows.attention
    used = torch.arange(attention.paths.shape[1], device=DEVICE) < attention.path_lens.unsqueeze(1)
    paths = torch.where(used, attention.paths, 0)
    lengths = [attention.prefix_lens, attention.path_lens]
    return [rows.tokens, rows.rows.positions, rows.rows.slots, attention.seqs, *lengths, paths, attention.slot_tables]


@pytest.mark.parametrize(("B", "N", "depth"), [(1, 0, 1), (3, 0, 4), (1, 1, 1), (2, 7, 3), (3, 15, 15), (2, 63, 8)])
def test_the_kernel_lays_out_rows_as_its_reference_does(B: int, N: int, depth: int) -> None:
    trees, roots = make_trees(B, N, depth=depth)
    roots_copy = replace(roots, slot_tables=roots.slot_tables.clone())  # the kernel writes to the slot tables
    result = comparable_tensors(tree_rows(trees, roots, depth=depth, last_position=LAST_POSITION))
    reference = comparable_tensors(tree_rows_reference(trees, roots_copy, depth=depth, last_position=LAST_POSITION))
    for actual, expected in zip(result, reference, strict=True):
        assert torch.equal(actual, expected)


def test_the_reference_lays_out_rows_as_the_engine_does_on_the_host() -> None:
    trees, roots = make_trees(3, 15, depth=5)
    rows = tree_rows_reference(trees, roots, depth=5, last_position=1000)
    attention = rows.rows.attention
    for b, (count, length) in enumerate(zip(trees.counts.tolist(), roots.lengths.tolist(), strict=True)):
        draft = Draft(tuple(trees.tokens[b, :count].tolist()), tuple(trees.parents[b, :count].tolist()), (0.0,) * count)
        assert roots.slot_tables[roots.table_rows[b], length - 1] == roots.slots[b, 0]
        for node, depth in enumerate(draft.depths()):
            row = b * 16 + 1 + node  # 1 + 15 rows for each sequence, the first for its last token
            path = [int(roots.slots[b, 1 + above]) for above in draft.path(node)]
            assert attention.paths[row, : attention.path_lens[row]].tolist() == path
            assert rows.rows.positions[row] == length - 1 + depth
            assert rows.rows.slots[row] == path[-1]
            assert rows.tokens[row] == draft.tokens[node]
