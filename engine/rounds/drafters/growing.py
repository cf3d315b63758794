"""EAGLE-3 and multi-token prediction in rounds: all levels of a tree in one program, and what was kept in another.

    observe   the module over the kept rows, by the target's own slots; what it made of the last is kept by lane
    draft     candidates of that; the likeliest are run as the next level, and so on, always to the same depth

Position t is read with token t + 1, so the keys a draft starts from end one position before the last token. How deep a
tree grows follows from the budget alone: the device can't ask the host whether a further level pays.
"""

from typing import Protocol

import torch
from torch import Tensor

from engine.drafters.growing_tree import WIDTH
from engine.models.base import Hidden
from engine.rounds.device import Device
from engine.rounds.drafters.base import Verified
from engine.rounds.drafters.guesses import GuessHead
from engine.rounds.drafters.lane_buffers import LaneBuffers
from engine.rounds.lanes import Lanes, LaneState
from engine.sequence import Sequence
from kernels.attention import AttentionRows
from kernels.decoder import DecoderRows
from kernels.growing import Pool
from kernels.tree import Trees

_CANDIDATES = 6  # per node


class Levels(Protocol):
    """A drafting module over rows. What it makes of a row, two vectors: one to guess from, one to go on with."""

    max_depth: int
    hidden_size: int
    dtypes: tuple[torch.dtype, torch.dtype]
    last_position: int
    scratch: int  # first of its own slots beyond the cache's, WIDTH of each lane and level
    head: GuessHead

    def inputs(self, hidden: Hidden, rows: Tensor) -> Tensor:
        """What it goes on with at rows [M] of the target's pass."""

    def run(self, inputs: Tensor, tokens: Tensor, rows: DecoderRows) -> tuple[Tensor, Tensor]:
        """inputs [M, H], overwritten; tokens [M] int64, that follow the rows'. Writes keys and values."""

    def known(self, sequence: Sequence) -> tuple[Tensor, Tensor] | None:
        """What the host's drafter made of the sequence's last position, [H] each."""


class GrowingInRounds:
    def __init__(self, module: Levels, lanes: Lanes, device: Device) -> None:
        self.max_depth = module.max_depth
        self._module = module
        self._lanes = lanes
        self._made = LaneBuffers(lanes, device, module.hidden_size, module.dtypes)

    def enter(self, sequence: Sequence) -> None:
        self._made.enter(sequence.table_row, self._module.known(sequence))

    def draft(self, state: LaneState, budget: int) -> Trees:
        (read, going_on), ready = self._made.read(state.rows)
        B, depth, device = read.shape[0], self._depth(budget), read.device
        k = min(_CANDIDATES, self._module.head.weight.out_features)
        pool = Pool.empty(B, k + (depth - 1) * WIDTH * k, device)
        nodes: Tensor | None = None
        paths = torch.empty(B, 1, 0, dtype=torch.int64, device=device)
        first, width = 0, 1
        for level in range(1, depth + 1):
            below = torch.full((width,), level - 1, device=device)
            found = self._module.head.ranked(read, k, state.sampling_below(below))
            pool.offer(first, nodes, found.tokens.view(B, width, k), found.survival.view(B, width, k))
            if level == depth:
                break
            nodes = pool.frontier(first, width * k, WIDTH)  # [B, W]
            above = (nodes - first) // k  # [B, W], places in the level
            paths = torch.cat([_gathered(paths, above), self._scratch(B, level, device).unsqueeze(-1)], dim=-1)
            going_on = _gathered(going_on.view(B, width, -1), above).flatten(0, 1)
            tokens = pool.tokens.gather(1, nodes).flatten()
            read, going_on = self._module.run(going_on, tokens, self._level_rows(state, paths))
            first, width = first + width * k, WIDTH
        trees = pool.trees(budget)
        return Trees(trees.tokens, trees.parents, trees.survival, trees.counts * ready)

    def observe(self, verified: Verified) -> None:
        kept = verified.kept(self._lanes.padding_slot, self._module.last_position)
        B, n = kept.rows.shape
        attention = AttentionRows(
            slot_tables=self._lanes.slot_tables,
            seqs=verified.state.rows.repeat_interleave(n),
            prefix_lens=kept.num_keys.flatten(),
            paths=torch.zeros(B * n, 1, dtype=torch.int32, device=kept.rows.device),
            path_lens=torch.zeros(B * n, dtype=torch.int64, device=kept.rows.device),
        )
        rows = DecoderRows(kept.positions.flatten(), kept.slots.flatten(), attention)
        inputs = self._module.inputs(verified.hidden, kept.rows.flatten())
        read, going_on = self._module.run(inputs, kept.tokens.flatten(), rows)
        last = torch.arange(B, device=kept.rows.device) * n + kept.last
        self._made.write(verified.state.rows, (read[last], going_on[last]))

    def _depth(self, budget: int) -> int:
        """Levels of a tree of so many nodes: of 3, 7, 15 and 31 nodes 3, 5, 6 and 7, as far as the module goes."""
        return max(1, min(self.max_depth, budget, 1 + (budget + 1).bit_length()))

    def _scratch(self, num_trees: int, level: int, device: torch.device) -> Tensor:
        """[B, W]: the level's own slots."""
        trees = torch.arange(num_trees, device=device).unsqueeze(1) * (self.max_depth - 1) + level - 1
        return self._module.scratch + trees * WIDTH + torch.arange(WIDTH, device=device)

    def _level_rows(self, state: LaneState, paths: Tensor) -> DecoderRows:
        """paths [B, W, level]: scratch slots of nodes, from the top down."""
        _, W, level = paths.shape
        positions = (state.lengths - 2 + level).clamp(max=self._module.last_position)
        attention = AttentionRows(
            slot_tables=self._lanes.slot_tables,
            seqs=state.rows.repeat_interleave(W),
            prefix_lens=(state.lengths - 1).repeat_interleave(W),
            paths=paths.flatten(0, 1).int(),
            path_lens=torch.full((paths.shape[0] * W,), level, device=paths.device),
        )
        return DecoderRows(positions.repeat_interleave(W), paths[..., -1].flatten().contiguous(), attention)


def _gathered(values: Tensor, places: Tensor) -> Tensor:
    """values [B, n, x], places [B, W] int64 in 0..n - 1 -> [B, W, x]."""
    return values.gather(1, places.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
