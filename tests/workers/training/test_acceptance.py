"""Tests of the acceptance length simulated on stored answers. test_job.py compares it with the served acceptance."""

import pytest

from engine.draft import EMPTY_DRAFT, Draft, chain, grow_tree
from workers.training.acceptance import Acceptance, accepted_tokens, replay_answer


@pytest.mark.parametrize(
    ("answer", "accepted"), [((7, 8, 9), 3), ((7, 8, 1), 2), ((1, 8, 9), 0), ((7,), 1), ((7, 8, 9, 10), 3), ((), 0)]
)
def test_a_chain_is_accepted_up_to_the_first_wrong_token(answer: tuple[int, ...], accepted: int) -> None:
    assert accepted_tokens(chain((7, 8, 9), (0.9, 0.8, 0.7)), answer) == accepted


def test_any_branch_of_a_tree_can_be_accepted() -> None:
    tree = grow_tree([[7, 1], [8, 2]], [[0.5, 0.4], [0.5, 0.4]], budget=6)  # 7 and 1, each followed by 8 and 2
    assert len(tree) == 6
    assert [accepted_tokens(tree, answer) for answer in ((7, 8), (1, 2), (1, 8), (7, 3), (3, 8))] == [2, 2, 2, 1, 0]


def test_replay_starts_the_next_pass_after_the_accepted_tokens_and_the_sampled_token() -> None:
    completion = [50, 51, 52, 53, 54, 55]
    # Drafts by row. In row 0, both draft tokens are accepted and 53 is sampled. In row 3, the draft is rejected.
    drafts: dict[int, Draft] = {0: chain((51, 52), (0.9, 0.8)), 3: chain((99,), (0.9,)), 4: EMPTY_DRAFT}
    acceptance = Acceptance()
    replay_answer(completion, drafts.__getitem__, into=acceptance)  # a pass at another row would raise KeyError
    assert (acceptance.num_passes, acceptance.num_accepted) == (3, 2)
    assert acceptance.histogram == [2, 0, 1]  # number of passes that accepted 0, 1 and 2 tokens
    assert acceptance.length == 1 + 2 / 3


def test_the_last_token_of_an_answer_does_not_count_as_accepted() -> None:
    acceptance = Acceptance()
    replay_answer([50, 51, 52], lambda _: chain((51, 52), (0.9, 0.8)), into=acceptance)
    assert (acceptance.num_passes, acceptance.num_accepted) == (1, 1)


def test_an_answer_of_one_token_needs_no_verify_pass() -> None:
    acceptance = Acceptance()
    replay_answer([50], lambda _: EMPTY_DRAFT, into=acceptance)
    assert (acceptance.num_passes, acceptance.length) == (0, 1.0)


def test_the_acceptance_rate_of_a_position_is_the_share_of_passes_that_accepted_a_token_there() -> None:
    acceptance = Acceptance()
    for accepted in (0, 1, 3, 3):
        acceptance.record(accepted)
    assert acceptance.rate_per_position() == [0.75, 0.5, 0.5]
