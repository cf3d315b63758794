"""Simulates the acceptance of Medusa heads on stored answers, from the target's hidden states for these answers."""

import torch

from engine.draft import grow_tree
from engine.drafters.medusa import MedusaDrafter
from workers.training.acceptance import Acceptance, replay_answer
from workers.training.hidden_states import HiddenRows


@torch.no_grad()
def simulate_heads(drafter: MedusaDrafter, rows: HiddenRows, *, budget: int) -> Acceptance:
    """Simulates serving these answers at temperature 0, with `budget` nodes per pass."""
    acceptance = Acceptance()
    for start, end in zip(rows.starts, rows.starts[1:], strict=False):
        tokens, probabilities = (
            t.tolist() for t in drafter.candidates(rows.hidden[start:end], rows.completions[start:end])
        )
        replay_answer(
            rows.completions[start:end].tolist(),
            # the defaults bind the values of this iteration
            lambda row, t=tokens, p=probabilities: grow_tree(t[row], p[row], budget),  # type: ignore[misc]
            into=acceptance,
        )
    return acceptance
