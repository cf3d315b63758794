"""EAGLE-3 and multi-token prediction on the device, which draft a tree level by level.

    observe   runs the module on the kept rows (of the last token and the accepted nodes), with keys and values in
              the target's cache slots, and stores the output of each sequence's last row in the batch slot
    draft     proposes candidates from that output, runs the likeliest of them as the next level, and repeats to a fixed
              depth

The module's input at position t includes token t + 1. The last token has no successor yet, so the cached keys end one
position before it. The depth of a tree depends only on the budget, because a captured graph has a fixed number of
levels.

Shape letters: B sequences, H hidden size, M rows, W nodes of a level, k candidates of a node.
"""

from typing import Protocol

import torch
from torch import Tensor

from engine.drafters.growing_tree import CANDIDATES, WIDTH
from engine.graph_decoding.batch_slots import BatchSlots, BatchSlotState
from engine.graph_decoding.device import Device
from engine.graph_decoding.drafters.base import Verified
from engine.graph_decoding.drafters.candidate_head import CandidateHead
from engine.graph_decoding.drafters.slot_buffers import BatchSlotBuffers
from engine.models.base import Hidden
from engine.sequence import Sequence
from kernels.attention import AttentionRows
from kernels.decoder import DecoderRows
from kernels.growing import Pool
from kernels.tree import Trees


class Levels(Protocol):
    """The interface of a module that drafts level by level.

    For each row, `run` returns two vectors: the output, which the head reads, and the feedback, which is the module's
    input at the next level.
    """

    max_depth: int
    hidden_size: int
    dtypes: tuple[torch.dtype, torch.dtype]
    last_position: int
    scratch: int  # the first scratch slot; the scratch slots follow the cache's, WIDTH for each tree and level
    head: CandidateHead

    def inputs(self, hidden: Hidden, rows: Tensor) -> Tensor:
        """Returns the module's inputs [M, H] for rows [M] of the target's pass."""

    def run(self, inputs: Tensor, tokens: Tensor, rows: DecoderRows) -> tuple[Tensor, Tensor]:
        """Returns outputs and feedback of M rows, and writes their keys and values.

        inputs: [M, H], overwritten. tokens: [M] int64, the token after each row's position.
        """

    def host_state(self, sequence: Sequence) -> tuple[Tensor, Tensor] | None:
        """Returns the output and the feedback, [H] each, from which the drafter on the host would start its next draft.

        Returns None if the drafter on the host has not observed the pass before the sequence's last token.
        """


class GrowingTreeGraphDrafter:
    def __init__(self, module: Levels, batch_slots: BatchSlots, device: Device) -> None:
        self.max_depth = module.max_depth
        self._module = module
        self._batch_slots = batch_slots
        self._last_output = BatchSlotBuffers(batch_slots, device, module.hidden_size, module.dtypes)

    def load_sequence(self, sequence: Sequence) -> None:
        self._last_output.load(sequence.table_row, self._module.host_state(sequence))

    def draft(self, state: BatchSlotState, budget: int) -> Trees:
        (output, feedback), ready = self._last_output.read(state.rows)
        B, depth, device = output.shape[0], self._depth(budget), output.device
        k = min(CANDIDATES, self._module.head.weight.out_features)
        pool = Pool.empty(B, k + (depth - 1) * WIDTH * k, device)
        nodes: Tensor | None = None
        paths = torch.empty(B, 1, 0, dtype=torch.int64, device=device)
        first, width = 0, 1  # the level's first node; number of its parents, which have k candidates each
        for level in range(1, depth + 1):
            depths = torch.full((width,), level - 1, device=device)
            ranked = self._module.head.ranked(output, k, state.sampling_below(depths))
            pool.add_level(first, nodes, ranked.tokens.view(B, width, k), ranked.survival.view(B, width, k))
            if level == depth:
                break
            nodes = pool.frontier(first, width * k, WIDTH)  # [B, W]
            parents = (nodes - first) // k  # [B, W], indices in the previous level
            paths = torch.cat([_gathered(paths, parents), self._scratch(B, level, device).unsqueeze(-1)], dim=-1)
            feedback = _gathered(feedback.view(B, width, -1), parents).flatten(0, 1)
            tokens = pool.tokens.gather(1, nodes).flatten()
            output, feedback = self._module.run(feedback, tokens, self._level_rows(state, paths))
            first, width = first + width * k, WIDTH
        trees = pool.trees(budget)
        return Trees(trees.tokens, trees.parents, trees.survival, trees.counts * ready)

    def observe(self, verified: Verified) -> None:
        kept = verified.kept(self._batch_slots.padding_slot, self._module.last_position)
        B, n = kept.rows.shape
        attention = AttentionRows(
            slot_tables=self._batch_slots.slot_tables,
            seqs=verified.state.rows.repeat_interleave(n),
            prefix_lens=kept.num_keys.flatten(),
            paths=torch.zeros(B * n, 1, dtype=torch.int32, device=kept.rows.device),
            path_lens=torch.zeros(B * n, dtype=torch.int64, device=kept.rows.device),
            max_seqs=B,
            max_keys=verified.state.max_keys,
        )
        rows = DecoderRows(kept.positions.flatten(), kept.slots.flatten(), attention)
        inputs = self._module.inputs(verified.hidden, kept.rows.flatten())
        output, feedback = self._module.run(inputs, kept.tokens.flatten(), rows)
        last = torch.arange(B, device=kept.rows.device) * n + kept.last
        self._last_output.write(verified.state.rows, (output[last], feedback[last]))

    def _depth(self, budget: int) -> int:
        """Returns the number of levels: 3, 5, 6 or 7 for a budget of 3, 7, 15 or 31 nodes, but at most `max_depth`."""
        return max(1, min(self.max_depth, budget, 1 + (budget + 1).bit_length()))

    def _scratch(self, num_trees: int, level: int, device: torch.device) -> Tensor:
        """Returns the scratch slots [B, W] of a level."""
        trees = torch.arange(num_trees, device=device).unsqueeze(1) * (self.max_depth - 1) + level - 1
        return self._module.scratch + trees * WIDTH + torch.arange(WIDTH, device=device)

    def _level_rows(self, state: BatchSlotState, paths: Tensor) -> DecoderRows:
        """paths: [B, W, level], the scratch slots on the path to each node, from the root down."""
        _, W, level = paths.shape
        # A node's row is at the position before the node's token, because the module's input includes the next token.
        positions = (state.lengths - 2 + level).clamp(max=self._module.last_position)
        attention = AttentionRows(
            slot_tables=self._batch_slots.slot_tables,
            seqs=state.rows.repeat_interleave(W),
            prefix_lens=(state.lengths - 1).repeat_interleave(W),
            paths=paths.flatten(0, 1).int(),
            path_lens=torch.full((paths.shape[0] * W,), level, device=paths.device),
            max_seqs=paths.shape[0],
            max_keys=state.max_keys,
        )
        return DecoderRows(positions.repeat_interleave(W), paths[..., -1].flatten().contiguous(), attention)


def _gathered(values: Tensor, index: Tensor) -> Tensor:
    """values [B, n, x], index [B, W] int64 in 0..n - 1 -> [B, W, x]."""
    return values.gather(1, index.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
