"""The CUDA kernels that grow and accept draft trees agree with their references.

The reference that grows trees is also compared with the function that the engine uses on the CPU.

Shape letters: B sequences, k candidates at each depth, N nodes of a tree.
"""

import pytest
import torch

from engine.draft import grow_tree
from kernels.cuda.tree import accept_trees, grow_trees
from kernels.tree import Accepted, Commit, Trees, accept_trees_reference, grow_trees_reference
from tests.kernels.cuda.device import DEVICE


def candidates(B: int, depths: int, k: int, *, coarse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and their chances of acceptance [B, depths, k].

    coarse: the chances are multiples of 1/4, so that many nodes have the same survival.
    """
    generator = torch.Generator().manual_seed(B * 100 + depths * 10 + k)
    tokens = torch.randint(0, 9, (B, depths, k), generator=generator)
    chances = torch.rand(B, depths, k, generator=generator)
    chances = (chances * 4).ceil() / 4 if coarse else chances
    return tokens.to(DEVICE), chances.sort(-1, descending=True).values.to(DEVICE)


# (B, depths, k, budget). The kernel rounds budget + 1 up to a power of two, so 15 and 16 give different block sizes.
SIZES = [(1, 1, 1, 1), (2, 3, 2, 5), (2, 4, 3, 15), (1, 4, 3, 16), (2, 6, 5, 64), (1, 2, 2, 20)]


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize(("B", "depths", "k", "budget"), SIZES)
def test_the_kernel_grows_the_same_tree_as_the_reference(
    B: int, depths: int, k: int, budget: int, coarse: bool
) -> None:
    tokens, chances = candidates(B, depths, k, coarse=coarse)
    actual, reference = grow_trees(tokens, chances, budget), grow_trees_reference(tokens, chances, budget)
    assert torch.equal(actual.counts, reference.counts)
    for b, count in enumerate(actual.counts.tolist()):
        assert torch.equal(actual.tokens[b, :count], reference.tokens[b, :count])
        assert torch.equal(actual.parents[b], reference.parents[b])
        assert torch.equal(actual.survival[b], reference.survival[b])


def test_a_tree_has_all_possible_nodes_if_the_budget_exceeds_the_number_of_nodes() -> None:
    tokens, chances = candidates(1, 2, 2, coarse=False)
    assert grow_trees(tokens, chances, 20).counts.tolist() == [6]  # 2 nodes at depth 1, and 2 children of each


@pytest.mark.parametrize("coarse", [False, True])
def test_the_reference_grows_the_same_tree_as_the_engine(coarse: bool) -> None:
    tokens, chances = candidates(2, 5, 4, coarse=coarse)
    trees = grow_trees_reference(tokens, chances, 40)
    for b in range(2):
        draft = grow_tree(tokens[b].tolist(), chances[b].tolist(), 40)
        assert draft.tokens == tuple(trees.tokens[b].tolist())
        assert draft.parents == tuple(trees.parents[b].tolist())


def accept_with_both(
    trees: Trees, target_tokens: torch.Tensor
) -> tuple[tuple[Accepted, torch.Tensor], tuple[Accepted, torch.Tensor]]:
    """Returns the result and the slot tables of the kernel, and then those of the reference."""
    B, N = trees.tokens.shape
    results = []
    for accept in (accept_trees, accept_trees_reference):
        commit = Commit(
            slot_tables=torch.full((B + 2, 100), -7, dtype=torch.int32, device=DEVICE),
            table_rows=torch.arange(B, device=DEVICE).flip(0) + 1,
            positions=torch.arange(B, device=DEVICE) * 5 + 3,
            node_slots=torch.arange(B * N, dtype=torch.int32, device=DEVICE).view(B, N) + 1000,
        )
        results.append((accept(target_tokens, trees, commit), commit.slot_tables))
    return results[0], results[1]


@pytest.mark.parametrize("N", [1, 7, 8, 15, 16, 60])
def test_the_kernel_accepts_the_same_nodes_as_the_reference(N: int) -> None:
    B = 6
    generator = torch.Generator().manual_seed(N)
    parents = torch.stack([torch.randint(-1, max(node, 1), (B,), generator=generator) for node in range(N)], 1)
    parents = torch.minimum(parents, torch.arange(N) - 1)  # a parent comes before its child
    trees = Trees(
        torch.randint(0, 3, (B, N), generator=generator).to(DEVICE),  # siblings may have the same token
        parents.to(DEVICE),
        torch.zeros(B, N, device=DEVICE),
        torch.randint(0, N + 1, (B,), generator=generator).to(DEVICE),
    )
    target_tokens = torch.randint(0, 3, (B, N + 1), generator=generator).to(DEVICE)

    (actual, table), (reference, reference_table) = accept_with_both(trees, target_tokens)

    assert torch.equal(actual.counts, reference.counts)
    assert torch.equal(actual.nodes, reference.nodes)
    assert torch.equal(actual.tokens, reference.tokens)
    assert torch.equal(table, reference_table)


def test_the_slots_of_an_accepted_chain_are_appended_to_the_slot_table() -> None:
    N = 16
    trees = Trees(
        torch.arange(N, device=DEVICE).unsqueeze(0),
        torch.arange(-1, N - 1, device=DEVICE).unsqueeze(0),
        torch.ones(1, N, device=DEVICE),
        torch.tensor([N], device=DEVICE),
    )
    (actual, table), _ = accept_with_both(trees, torch.arange(N + 1, device=DEVICE).unsqueeze(0))
    assert actual.counts.tolist() == [N]
    assert actual.tokens.tolist() == [list(range(N + 1))]
    # `accept_with_both` gives the sequence row 1 of the table, the position 3 and the slots from 1000.
    assert table[1, 3 : 3 + N].tolist() == list(range(1000, 1000 + N))
    assert (table[1, 3 + N :] == -7).all()
