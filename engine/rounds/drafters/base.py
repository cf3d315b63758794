"""What a drafter is to a round: it drafts from what it keeps of a lane, and reads what a pass computed, by itself.

Weights, and keys and values by slot, are those of the drafter that serves elsewhere (engine/drafters); here is only how
it works without the host. Both methods are captured: they read and write tensors made before, and ask nothing.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.models.base import Hidden
from engine.rounds.lanes import LaneState
from engine.sequence import Sequence
from kernels.tree import Accepted, Trees


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows of a pass that were kept: of each of B sequences the last token and the accepted nodes, up to n in all.

    rows, positions, tokens, slots, num_keys: [B, n] int64. Place in the pass, where it stands, the token that follows,
        its slot, and how many positions it attends to, all of which the table has. What is not there repeats the last
        token's row, at the slot that is nobody's.
    last: [B] int64. Which of the n is the last that is there.
    """

    rows: Tensor
    positions: Tensor
    tokens: Tensor
    slots: Tensor
    num_keys: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True)
class Verified:
    """A pass of B (1 + N) rows, verified.

    state: of the lanes before it.
    slots: [B, 1 + N] int32.
    depth: how long a path may be.
    """

    hidden: Hidden
    state: LaneState
    accepted: Accepted
    slots: Tensor
    depth: int

    def last_rows(self) -> Tensor:
        """[B] int64: the row that chose each sequence's last token."""
        accepted = self.accepted
        B, N = accepted.nodes.shape
        first = torch.arange(B, device=accepted.counts.device) * (1 + N)
        if not N:
            return first
        node = accepted.nodes.gather(1, (accepted.counts - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        return torch.where(accepted.counts > 0, first + 1 + node, first)

    def kept(self, spare_slot: int, last_position: int) -> Kept:
        accepted, state = self.accepted, self.state
        B, N = accepted.nodes.shape
        n = 1 + min(self.depth, N)
        device = accepted.counts.device
        place = torch.arange(n, device=device)
        inside = place <= accepted.counts.unsqueeze(1)  # [B, n]
        nodes = torch.cat([accepted.counts.new_full((B, 1), -1), accepted.nodes[:, : n - 1]], dim=1)
        own = torch.where(inside, nodes, -1) + 1  # [B, n], in 0..N
        rows = torch.arange(B, device=device).unsqueeze(1) * (1 + N) + own
        num_keys = state.lengths.unsqueeze(1) + torch.where(inside, place, 0)
        slots = torch.where(inside, self.slots.long().gather(1, own), spare_slot)
        tokens = torch.where(inside, accepted.tokens[:, :n], 0)
        positions = (num_keys - 1).clamp(max=last_position)
        return Kept(rows, positions, tokens, slots, num_keys, accepted.counts)


class RoundDrafter(Protocol):
    max_depth: int

    def enter(self, sequence: Sequence) -> None:
        """The sequence decodes in rounds from now on: what is known of it goes to its lane."""

    def draft(self, state: LaneState, budget: int) -> Trees:
        """[B, budget]; of a lane that nothing is known of, no nodes."""

    def observe(self, verified: Verified) -> None:
        """After every round, those without drafts included."""
