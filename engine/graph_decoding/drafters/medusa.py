"""Medusa heads on the device. One product runs all heads, and candidates are found without storing logits."""

import torch

from engine.drafters.medusa import CANDIDATES, MedusaDrafter
from engine.graph_decoding.batch_slots import BatchSlots, BatchSlotState
from engine.graph_decoding.device import Device
from engine.graph_decoding.drafters.base import Verified
from engine.graph_decoding.drafters.candidate_head import CandidateHead
from engine.graph_decoding.drafters.slot_buffers import BatchSlotBuffers
from engine.sequence import Sequence
from kernels.candidates import candidates
from kernels.lm_head import BestTokens
from kernels.tree import Trees, grow_trees


class MedusaGraphDrafter:
    def __init__(self, drafter: MedusaDrafter, batch_slots: BatchSlots, device: Device) -> None:
        self.max_depth = drafter.max_depth
        self._drafter = drafter
        self._heads = [CandidateHead(head, drafter.vocab) for head in drafter.heads]
        self._last_hidden = BatchSlotBuffers(batch_slots, device, drafter.hidden_size, (drafter.dtype,))

    def load_sequence(self, sequence: Sequence) -> None:
        hidden = self._drafter.last_hidden(sequence.request.request_id)
        self._last_hidden.load(sequence.table_row, None if hidden is None else (hidden,))

    def draft(self, state: BatchSlotState, budget: int) -> Trees:
        (hidden,), ready = self._last_hidden.read(state.rows)
        features = self._drafter.features(hidden, state.tokens)  # [B, K, H]
        B, K, _ = features.shape
        sampling = state.sampling_below(torch.arange(K, device=hidden.device))
        ranked = candidates(self._best(features), sampling)
        trees = grow_trees(ranked.tokens.view(B, K, -1), ranked.survival.view(B, K, -1), budget)
        return Trees(trees.tokens, trees.parents, trees.survival, trees.counts * ready)

    def observe(self, verified: Verified) -> None:
        self._last_hidden.write(verified.state.rows, (verified.hidden.final[verified.last_rows()],))

    def _best(self, features: torch.Tensor) -> BestTokens:
        """Returns the best tokens of K heads for B sequences, as B * K rows. features: [B, K, H]."""
        if len(self._heads) == 1:
            return self._heads[0].best(features.flatten(0, 1), CANDIDATES)
        each = [head.best(features[:, k].contiguous(), CANDIDATES) for k, head in enumerate(self._heads)]
        return BestTokens(
            torch.stack([best.values for best in each], 1).flatten(0, 1),
            torch.stack([best.tokens for best in each], 1).flatten(0, 1),
            torch.stack([best.log_sums for best in each], 1).flatten(),
        )
