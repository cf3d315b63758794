"""The interface between graph steps and a drafter on the device.

A graph drafter is part of a captured CUDA graph and needs no host. It drafts from its state in the batch slots (the
places of the sequences in a batch of fixed size), and updates this state from the verified pass. It shares weights,
keys and values with a drafter of engine/drafters. `draft` and `observe` are captured, so their state has to be in
tensors that were allocated before the capture.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.graph_decoding.batch_slots import BatchSlotState
from engine.models.base import Hidden
from engine.sequence import Sequence
from kernels.tree import Accepted, Trees


@dataclass(frozen=True, slots=True)
class Kept:
    """Kept rows of a pass: for each of B sequences, the rows of its last token and of the accepted nodes.

    Each sequence has n entries. If a sequence has fewer than n kept rows, the unused entries repeat the row of its last
    token, but with the padding slot.

    rows: [B, n] int64. Index of the row in the pass.
    positions: [B, n] int64. Position in the sequence.
    tokens: [B, n] int64. The token after the position.
    slots: [B, n] int64. Cache slot of the position.
    num_keys: [B, n] int64. Number of positions that the row attends to, including its own. The slot table contains
        all of them.
    last: [B] int64. Index of the last used entry.
    """

    rows: Tensor
    positions: Tensor
    tokens: Tensor
    slots: Tensor
    num_keys: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True)
class Verified:
    """A verified pass. It has B * (1 + N) rows: for each of B sequences, the last token and N draft nodes.

    state: the batch slots before the pass.
    slots: [B, 1 + N] int32, the rows' cache slots.
    depth: the maximum depth of a tree.
    """

    hidden: Hidden
    state: BatchSlotState
    accepted: Accepted
    slots: Tensor
    depth: int

    def last_rows(self) -> Tensor:
        """Returns [B] int64: the row from which each sequence's new last token was sampled."""
        accepted = self.accepted
        B, N = accepted.nodes.shape
        first = torch.arange(B, device=accepted.counts.device) * (1 + N)
        if not N:
            return first
        node = accepted.nodes.gather(1, (accepted.counts - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        return torch.where(accepted.counts > 0, first + 1 + node, first)

    def kept(self, padding_slot: int, last_position: int) -> Kept:
        """Returns the kept rows; unused entries have `padding_slot`. Positions are at most `last_position`."""
        accepted, state = self.accepted, self.state
        B, N = accepted.nodes.shape
        n = 1 + min(self.depth, N)
        device = accepted.counts.device
        index = torch.arange(n, device=device)  # entry 0 is the last token, entry i the i-th accepted node
        used = index <= accepted.counts.unsqueeze(1)  # [B, n]
        nodes = torch.cat([accepted.counts.new_full((B, 1), -1), accepted.nodes[:, : n - 1]], dim=1)
        own_rows = torch.where(used, nodes, -1) + 1  # [B, n]: index among the sequence's 1 + N rows; 0: last token
        rows = torch.arange(B, device=device).unsqueeze(1) * (1 + N) + own_rows
        num_keys = state.lengths.unsqueeze(1) + torch.where(used, index, 0)
        slots = torch.where(used, self.slots.long().gather(1, own_rows), padding_slot)
        tokens = torch.where(used, accepted.tokens[:, :n], 0)
        positions = (num_keys - 1).clamp(max=last_position)
        return Kept(rows, positions, tokens, slots, num_keys, accepted.counts)


class GraphDrafter(Protocol):
    max_depth: int

    def load_sequence(self, sequence: Sequence) -> None:
        """Copies the host drafter's state of this sequence to the batch slot of the sequence."""

    def draft(self, state: BatchSlotState, budget: int) -> Trees:
        """Returns a tree of at most `budget` nodes for each batch slot, empty if the slot has no drafter state."""

    def observe(self, verified: Verified) -> None:
        """Updates the drafter's state from a verified pass. Called in every graph step, even if nothing was drafted."""
