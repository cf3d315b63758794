"""The n-gram drafter copies what followed the longest match, and adjusts survival estimates by acceptance."""

import pytest

from engine.drafters.ngram import NgramDrafter
from tests.engine.test_suffix import make_sequence


def test_a_longer_match_is_preferred_to_a_later_match() -> None:
    prompt = [1, 2, 3, 4, 50, 51, 52, 9, 4, 60, 61, 1, 2, 3]
    (draft,) = NgramDrafter().propose([make_sequence("a", prompt, [4])], 3)
    assert draft.tokens == (50, 51, 52)
    assert draft.parents == (-1, 0, 1)


def test_the_latest_of_equally_long_matches_is_used() -> None:
    prompt = [1, 2, 70, 71, 5, 1, 2, 80, 81, 1]
    (draft,) = NgramDrafter().propose([make_sequence("a", prompt, [2])], 2)
    assert draft.tokens == (80, 81)


def test_nothing_is_proposed_if_the_last_token_did_not_occur_earlier() -> None:
    (draft,) = NgramDrafter().propose([make_sequence("a", [1, 2, 3], [4])], 8)
    assert len(draft) == 0


@pytest.mark.parametrize("right", [True, False])
def test_the_survival_of_a_proposal_approaches_the_observed_acceptance_rate(right: bool) -> None:
    drafter = NgramDrafter()
    sequence = make_sequence("a", [*range(20)] * 2, [0])
    survivals = []
    for _ in range(60):
        (draft,) = drafter.propose([sequence], 4)
        survivals.append(draft.survival[0])
        following = draft.tokens[0]
        # A token that was not drafted makes the draft wrong. The prompt is then repeated, so that the drafter finds a
        # match again.
        sequence.tokens += [following] if right else [1000 + following, *range(20), 0]
    assert (survivals[-1] > survivals[0]) == right
    assert survivals[-1] > 0.95 if right else survivals[-1] < 0.3


def test_a_preempted_request_is_indexed_again() -> None:
    drafter = NgramDrafter()
    sequence = make_sequence("a", [5, 6, 7, 8], [5, 6])
    (before,) = drafter.propose([sequence], 2)
    drafter.forget("a")
    (after,) = drafter.propose([sequence], 2)
    assert before.tokens == after.tokens == (7, 8)
