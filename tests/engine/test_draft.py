"""Draft trees contain the likeliest nodes with all their parents, and verification follows the target's branch."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.draft import EMPTY_DRAFT, Draft, chain, grow_tree
from engine.request import Request, SamplingParams, SpeculationStats
from engine.sequence import Sequence
from engine.verify import verify


def greedy_sequence() -> Sequence:
    request = Request("a", (1, 2, 3), SamplingParams(max_tokens=10, temperature=0.0))
    return Sequence(request, [1, 2, 3], None, SpeculationStats())


@given(
    depth=st.integers(1, 4),
    width=st.integers(1, 4),
    budget=st.integers(0, 12),
    seed=st.integers(0, 1000),
)
def test_a_grown_tree_has_the_likeliest_nodes(depth: int, width: int, budget: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(depth, width, generator=generator, dtype=torch.float64).sort(dim=1, descending=True)[0]
    tokens = [[10 * d + k for k in range(width)] for d in range(depth)]

    draft = grow_tree(tokens, probabilities.tolist(), budget)

    all_survivals = sorted(
        (
            float(torch.prod(torch.stack([probabilities[d, k] for d, k in enumerate(ranks)])))
            for length in range(1, depth + 1)
            for ranks in itertools.product(range(width), repeat=length)
        ),
        reverse=True,
    )
    assert sorted(draft.survival, reverse=True) == pytest.approx(all_survivals[:budget])
    paths = {tuple(draft.tokens[n] for n in draft.path(node)) for node in range(len(draft))}
    assert len(paths) == len(draft), "a path occurs twice"


def test_an_invalid_draft_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parent of node 0 must be in -1\.\.-1, got 0"):
        Draft((5,), (0,), (0.5,))
    with pytest.raises(ValueError, match="node 1 can't be likelier than its parent 0"):
        Draft((5, 6), (-1, 0), (0.5, 0.6))
    with pytest.raises(ValueError, match="must be of one length"):
        Draft((5,), (), ())


def test_a_draft_cut_to_given_nodes_renumbers_their_parents() -> None:
    draft = Draft((1, 2, 3, 4, 5), (-1, -1, 0, 1, 3), (0.9, 0.5, 0.4, 0.3, 0.2))
    cut = draft.only([1, 3, 4])
    assert (cut.tokens, cut.parents) == ((2, 4, 5), (-1, 0, 1))
    assert cut.depths() == [1, 2, 3]
    assert cut.path(2) == [0, 1, 2]


def test_the_likeliest_nodes_of_a_draft_form_a_tree() -> None:
    draft = Draft((1, 2, 3, 4, 5), (-1, -1, 0, 1, 2), (0.5, 0.9, 0.5, 0.4, 0.5))
    cut = draft.likeliest(3)
    assert (cut.tokens, cut.parents, cut.survival) == ((1, 2, 3), (-1, -1, 0), (0.5, 0.9, 0.5))
    assert draft.likeliest(5) is draft


def logits_for(tokens: list[int], vocab_size: int = 10) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocab_size).float()


def test_verification_accepts_the_branch_whose_tokens_the_target_samples() -> None:
    draft = Draft((1, 2, 3, 4), (-1, -1, 1, 2), (0.9, 0.8, 0.7, 0.6))
    # The target samples 2 at the root, 3 at node 1 (token 2), and 9 at node 2 (token 3), which no node proposes.
    verdict = verify(logits_for([2, 0, 3, 9, 0]), draft, greedy_sequence(), frozenset())
    assert verdict.path == (1, 2)
    assert verdict.tokens == (2, 3, 9)


def test_verification_without_a_draft_returns_the_sampled_token() -> None:
    verdict = verify(logits_for([7]), EMPTY_DRAFT, greedy_sequence(), frozenset())
    assert (verdict.path, verdict.tokens) == ((), (7,))


def test_a_correct_chain_is_accepted_completely() -> None:
    verdict = verify(logits_for([4, 5, 6]), chain([4, 5], [0.9, 0.8]), greedy_sequence(), frozenset())
    assert (verdict.path, verdict.tokens) == ((0, 1), (4, 5, 6))
