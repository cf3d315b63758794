"""`CombinedDrafter` merges the trees of several drafters, and corrects survival estimates by measured acceptance."""

from collections.abc import Sequence as Many
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft import Draft, chain
from engine.drafters.base import Drafter, Kept, Pass
from engine.drafters.combined import CombinedDrafter
from engine.errors import DrafterError, SpeculatorNotLoadable
from engine.load import load_drafter, load_model
from engine.sequence import Sequence
from tests.engine.test_suffix import make_sequence
from tests.tiny_model import make_tiny_model


class ScriptedDrafter(Drafter):
    """Proposes the same draft for every sequence, or fails if the draft is None."""

    max_depth = 4

    def __init__(self, draft: Draft | None, tap_layers: tuple[int, ...] = ()) -> None:
        self.name = "scripted"
        self.draft = draft
        self.tap_layers = tap_layers
        self.observed: list[Pass] = []

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        if self.draft is None:
            raise DrafterError("on purpose")
        return [self.draft] * len(sequences)

    def observe(self, done: Pass) -> None:
        self.observed.append(done)


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    nodes: dict[tuple[int, int], float] = {}  # (parent, token) -> survival
    survivals = [1.0]  # of the root and then of each node
    for _ in range(draw(st.integers(0, 8))):
        node = (draw(st.integers(-1, len(nodes) - 1)), draw(st.integers(0, 3)))
        if node not in nodes:
            nodes[node] = survivals[node[0] + 1] * draw(st.floats(0.1, 1.0))
            survivals.append(nodes[node])
    return Draft(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes), tuple(nodes.values()))


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(draft.tokens[node] for node in draft.path(node)) for node in range(len(draft))}


@settings(deadline=None)
@given(trees(), trees())
def test_a_combined_draft_contains_every_path_of_both_drafts_once(one: Draft, other: Draft) -> None:
    combined = CombinedDrafter([ScriptedDrafter(one), ScriptedDrafter(other)])
    (merged,) = combined.propose([make_sequence("a", [1], [2])], 100)
    assert paths(merged) == paths(one) | paths(other)
    assert len(merged) == len(paths(merged))
    (limited,) = combined.propose([make_sequence("b", [1], [2])], 3)
    assert sorted(limited.survival) == pytest.approx(sorted(merged.survival)[-3:])  # the three likeliest nodes


def test_each_drafter_observes_only_its_own_taps() -> None:
    first, without_taps, second = (ScriptedDrafter(chain([], []), layers) for layers in ((1, 5), (), (3,)))
    combined = CombinedDrafter([first, without_taps, second])
    assert combined.tap_layers == (1, 5, 3)
    taps = torch.arange(4 * 3 * 2.0).view(4, 3, 2)  # [rows, tap layers, hidden size]
    kept = (Kept(make_sequence("a", [1], [2]), 0, (0,)),)

    combined.observe(Pass(torch.zeros(4, 2), taps, kept))

    received = [drafter.observed[0].taps for drafter in (first, without_taps, second)]
    assert [None if part is None else part.tolist() for part in received] == [
        taps[:, :2].tolist(),
        None,
        taps[:, 2:].tolist(),
    ]


def test_a_combined_drafter_still_drafts_if_one_of_its_drafters_fails() -> None:
    combined = CombinedDrafter([ScriptedDrafter(None), ScriptedDrafter(chain([7, 8], [0.9, 0.8]))])
    (draft,) = combined.propose([make_sequence("a", [1], [2])], 8)
    assert draft.tokens == (7, 8)


def test_the_survivals_of_a_combined_draft_approach_the_observed_acceptance_rates() -> None:
    """One drafter states a survival of 0.95 but is right in only a quarter of the steps. The other drafter states 0.3
    and is right in the other three quarters.
    """
    combined = CombinedDrafter([ScriptedDrafter(chain([5], [0.95])), ScriptedDrafter(chain([6], [0.3]))])
    sequence = make_sequence("a", [1], [2])
    for step in range(200):
        (draft,) = combined.propose([sequence], 8)
        sequence.tokens.append(5 if step % 4 == 0 else 6)
    survival = dict(zip(draft.tokens, draft.survival, strict=True))
    assert survival[5] == pytest.approx(0.25, abs=0.05)
    assert survival[6] == pytest.approx(0.75, abs=0.05)
    (best,) = combined.propose([sequence], 1)
    assert best.tokens == (6,)


def test_a_node_that_both_drafters_propose_has_a_higher_survival() -> None:
    """When the drafters agree, they are right; when they disagree, each of them is right in half of the cases."""
    one, other = ScriptedDrafter(None), ScriptedDrafter(None)
    combined = CombinedDrafter([one, other])
    sequence = make_sequence("a", [1], [2])
    for step in range(200):
        one.draft, other.draft = chain([5], [0.5]), chain([5 + step % 2], [0.5])
        (draft,) = combined.propose([sequence], 8)
        sequence.tokens.append(5 if step % 2 == 0 or step % 4 == 1 else 6)
        if step >= 100:
            expected = {5: 1.0} if step % 2 == 0 else {5: 0.5, 6: 0.5}
            assert dict(zip(draft.tokens, draft.survival, strict=True)) == pytest.approx(expected, abs=0.1)


def test_a_name_with_a_plus_loads_a_combined_drafter(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path))
    drafter = load_drafter("ngram+suffix", model, None)
    assert (drafter.name, drafter.max_depth) == ("ngram+suffix", 16)
    with pytest.raises(SpeculatorNotLoadable, match="got 'sufix'"):
        load_drafter("ngram+sufix", model, None)
