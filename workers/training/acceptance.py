"""Predicts the acceptance length that a drafter will have when served, without serving it.

At temperature 0 an answer c[0], c[1], ... does not depend on the drafter. Serving would therefore produce the stored
answer again, and a verify pass would accept the longest path of the drafted tree that agrees with this answer.
`replay_answer` walks through the answer and asks for a tree only at the rows where a verify pass would start:

    row j          the sequence so far ends with c[j]; the tree drafts c[j + 1], c[j + 2], ...
    accepted       length of the longest prefix of c[j + 1], c[j + 2], ... that is a path of the tree; the answer's last
                   token never counts as accepted, because it counts as sampled by the target
    next row       j + accepted + 1
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.draft import Draft


@dataclass(slots=True)
class Acceptance:
    """Counts over all verify passes of all conversations. Ratios are computed from the final counts."""

    num_passes: int = 0
    num_accepted: int = 0
    histogram: list[int] = field(default_factory=list)  # [i]: passes that accepted i draft tokens

    @property
    def length(self) -> float:
        """Returns tokens per pass, including the token that the target samples."""
        return 1.0 + self.num_accepted / max(1, self.num_passes)

    def rate_per_position(self) -> list[float]:
        """Returns a list whose entry i is the share of passes that accepted at least i + 1 draft tokens."""
        return [sum(self.histogram[i + 1 :]) / max(1, self.num_passes) for i in range(len(self.histogram) - 1)]

    def record(self, accepted: int) -> None:
        self.num_passes += 1
        self.num_accepted += accepted
        self.histogram.extend([0] * (accepted + 1 - len(self.histogram)))
        self.histogram[accepted] += 1


def replay_answer(completion: Sequence[int], draft_at: Callable[[int], Draft], *, into: Acceptance) -> None:
    """Adds the verify passes of one answer to `into`. The prefill samples the first token and is not counted.

    Args:
        draft_at: takes a row and returns the tree that the drafter drafts after `completion[row]`.
    """
    row = 0
    while row < len(completion) - 1:
        accepted = accepted_tokens(draft_at(row), completion[row + 1 : -1])
        into.record(accepted)
        row += accepted + 1


def accepted_tokens(draft: Draft, truth: Sequence[int]) -> int:
    """Returns the length of the longest prefix of `truth` that is a path of the draft."""
    children = {
        (parent, token): node for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))
    }
    node, accepted = -1, 0
    for token in truth:
        child = children.get((node, token))
        if child is None:
            break
        node, accepted = child, accepted + 1
    return accepted
