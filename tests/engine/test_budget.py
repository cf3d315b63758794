"""`DraftBudget` verifies as many draft nodes as save time, and stops drafting if drafts save no time."""

import pytest

from engine.budget import Calibration, DraftBudget
from engine.cost import CostModel, PassSize
from engine.draft import EMPTY_DRAFT, chain


def test_the_budget_admits_only_nodes_whose_verification_saves_time() -> None:
    # A pass of 1 to 8 rows takes 1 second; each row after the eighth adds 1 second.
    cost = CostModel((1, 8, 9, 64), (1.0, 1.0, 2.0, 57.0))
    budget = DraftBudget(cost, 20)
    good, bad = chain([1] * 10, [0.95**d for d in range(1, 11)]), chain([1] * 10, [0.01] * 10)

    assert len(budget.admit([good], [0], 0.0)[0]) == 7  # the eighth row is the sequence's last token
    assert [len(draft) for draft in budget.admit([good, bad], [0, 0], 0.0)] == [6, 0]
    assert [len(draft) for draft in budget.admit([good] * 8, [0] * 8, 0.0)] == [0] * 8
    prefill = PassSize.of_rows(7, 0)
    assert len(budget.admit([good], [0], 0.0, others=prefill)[0]) == 0


def test_survival_estimates_of_an_overconfident_drafter_are_lowered() -> None:
    calibration = Calibration()
    before = calibration.corrected(0.85)
    for _ in range(200):
        calibration.record(chain([1], [0.85]), [])
    assert before == pytest.approx(0.85)
    assert calibration.corrected(0.85) < 0.15


def test_without_a_cost_model_the_budget_is_fixed() -> None:
    budget = DraftBudget(None, 3)
    assert budget.nodes_to_request(1) == budget.nodes_to_request(50) == 3
    draft = chain([1, 2, 3], [0.1, 0.1, 0.1])
    assert budget.admit([draft], [0], 0.0) == [draft]


def flat_cost() -> CostModel:
    return CostModel((1, 64), (1.0, 64.0))  # every row costs as much as the first, so no draft can save time


def test_pauses_of_a_drafter_grow_while_its_drafts_save_no_time() -> None:
    budget = DraftBudget(flat_cost(), 8)
    drafting_steps = []
    for step in range(1000):
        if budget.nodes_to_request(2):
            drafting_steps.append(step)
            budget.admit([chain([1], [0.9])] * 2, [0, 0], draft_seconds=0.2)
    assert len(drafting_steps) < 20
    assert drafting_steps[-1] - drafting_steps[-2] > 100  # pauses grow


def test_a_drafter_that_costs_no_time_is_called_in_every_step() -> None:
    budget = DraftBudget(flat_cost(), 8)
    for _ in range(100):
        assert budget.nodes_to_request(1) > 0
        budget.admit([EMPTY_DRAFT], [0], draft_seconds=0.0001)


def test_drafting_resumes_once_drafts_save_time_again() -> None:
    cost = CostModel((1, 64), (1.0, 1.01))
    budget = DraftBudget(cost, 8)
    for _ in range(50):
        if budget.nodes_to_request(1):
            budget.admit([EMPTY_DRAFT], [0], draft_seconds=0.5)
    drafted = 0
    for _ in range(200):
        if budget.nodes_to_request(1):
            drafted += 1
            budget.admit([chain([1, 2, 3], [0.9, 0.8, 0.7])], [0], draft_seconds=0.1)
    assert drafted > 60  # fewer than 200, because the last pause extends into these steps
