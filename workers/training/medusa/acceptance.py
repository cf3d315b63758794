"""Simulates the acceptance of Medusa heads on stored answers, from the target's hidden states for these answers.

Medusa drafts from a single hidden state, so the tree at a row does not depend on the passes before it. The candidates
of all rows of an answer are therefore computed in one call of the served drafter.
"""

import torch

from engine.draft import grow_tree
from engine.drafters.medusa import MedusaDrafter
from workers.training.acceptance import Acceptance, replay_answer
from workers.training.hidden_states import HiddenRows


@torch.no_grad()
def simulate_heads(drafter: MedusaDrafter, rows: HiddenRows, *, budget: int) -> Acceptance:
    """Replays the answers at temperature 0. Each verify pass drafts a tree of at most `budget` nodes."""
    acceptance = Acceptance()
    for prompt, start, end in zip(rows.prompts, rows.starts, rows.starts[1:], strict=False):
        tokens, probabilities = (
            t.tolist() for t in drafter.candidates(rows.hidden[start:end], rows.completions[start:end], prompt)
        )
        replay_answer(
            rows.completions[start:end].tolist(),
            # Default arguments bind the candidates of this answer; a closure would see the last answer's.
            lambda row, t=tokens, p=probabilities: grow_tree(t[row], p[row], budget),  # type: ignore[misc]
            into=acceptance,
        )
    return acceptance
