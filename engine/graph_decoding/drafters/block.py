"""The block drafter on the device: one pass proposes candidates for every depth, and a tree is grown from them.

With a Markov head, a candidate's score depends on its parent. All pairs of a parent and a candidate of the next depth
are then scored at once, and the tree grows level by level. The children of a node are looked up by the index of the
node's token among the candidates of its depth. The anchor is the last token of a sequence, which is the root of its
tree.

Shape letters: B sequences, H hidden size, P candidates per depth whose pairs are scored, k children of a node, W nodes
of a level.
"""

import torch
from torch import Tensor

from engine.drafters.block import BlockDrafter
from engine.drafters.block_config import LayerAttention
from engine.drafters.block_heads import CANDIDATES, PAIRED, mass_share, rescaled_to_confidence
from engine.graph_decoding.batch_slots import BatchSlots, BatchSlotState
from engine.graph_decoding.drafters.base import Verified
from engine.graph_decoding.drafters.candidate_head import CandidateHead
from engine.models.dense import Decoder
from engine.sequence import Sequence
from kernels.attention import AttentionRows
from kernels.candidates import Candidates, candidates
from kernels.growing import Pool
from kernels.lm_head import BestTokens
from kernels.tree import Trees, grow_trees

_WIDTH = 8  # nodes of a level that may have children


class BlockGraphDrafter:
    """This drafter has no state in batch slots. It stores its keys and values under the target's cache slots."""

    def __init__(self, drafter: BlockDrafter, target: Decoder, batch_slots: BatchSlots) -> None:
        self.max_depth = drafter.max_depth
        self._drafter = drafter
        self._heads = drafter.heads
        self._head = CandidateHead(drafter.heads.own_head or target.weights.lm_head_packed)
        self._last_position = target.max_positions - 1
        self._batch_slots = batch_slots

    def load_sequence(self, sequence: Sequence) -> None:
        return

    def observe(self, verified: Verified) -> None:
        kept = verified.kept(self._batch_slots.padding_slot, self._last_position)
        taps = verified.hidden.taps
        assert taps is not None  # the drafter has tap_layers
        rows, positions, slots = (integers.flatten() for integers in (kept.rows, kept.positions, kept.slots))
        self._drafter.layers.write_contexts(taps[rows], positions, slots)

    def draft(self, state: BatchSlotState, budget: int) -> Trees:
        config = self._drafter.config
        anchors = (state.lengths - 1).clamp(max=self._last_position)
        masks = torch.full((anchors.shape[0], config.block_size - 1), config.mask_token_id, device=anchors.device)
        tokens = torch.cat([state.tokens.unsqueeze(1), masks], dim=1)
        embeddings = self._drafter.embedding[tokens].float()
        hidden = self._drafter.layers.run(embeddings, anchors, lambda attention: self._rows(attention, state, anchors))
        depths = min(self.max_depth, budget)
        predicting = hidden[:, config.first_row : config.first_row + depths].contiguous()
        if self._heads.markov is None:
            independent = self._independent(predicting, state)
            return grow_trees(independent.tokens, independent.survival, budget)
        return self._conditional(predicting, state, budget)

    def _rows(self, attention: LayerAttention, state: BatchSlotState, anchors: Tensor) -> AttentionRows:
        """Returns rows that attend to their own block and to the target's positions before the anchor.

        If the attention has a window, the rows attend only to the positions in the window.
        """
        B, size, device = anchors.shape[0], self._drafter.config.block_size, anchors.device
        tables, seqs, prefix_lens, max_keys = self._batch_slots.slot_tables, state.rows, anchors, state.max_keys
        if attention.window is not None:  # a slot table for each sequence, with only the window's positions
            first = (anchors - attention.window).clamp(min=0).unsqueeze(1)
            window = first + torch.arange(attention.window, device=device)
            tables = tables[state.rows.unsqueeze(1), window.clamp(max=tables.shape[1] - 1)]
            seqs, prefix_lens = torch.arange(B, device=device), anchors.clamp(max=attention.window)
            max_keys = min(max_keys, attention.window + size)
        scratch = self._drafter.layers.scratch + torch.arange(B * size, device=device).view(B, size)
        lengths = (
            torch.arange(1, size + 1, device=device) if attention.causal else torch.full((size,), size, device=device)
        )
        return AttentionRows(
            slot_tables=tables,
            seqs=seqs.repeat_interleave(size),
            prefix_lens=prefix_lens.repeat_interleave(size),
            paths=scratch.int().repeat_interleave(size, dim=0),
            path_lens=lengths.repeat(B),
            max_seqs=B,
            max_keys=max_keys,
        )

    def _independent(self, hidden: Tensor, state: BatchSlotState) -> Candidates:
        """Returns candidates [B, depths, k] that do not depend on their parents."""
        B, depths, _ = hidden.shape
        best = self._head.best(hidden.flatten(0, 1), CANDIDATES)
        vocab = self._heads.vocab
        best = best if vocab is None else BestTokens(best.values, vocab[best.tokens], best.log_sums)
        ranked = candidates(best, state.sampling_below(torch.arange(depths, device=hidden.device)))
        survival = ranked.survival
        if self._heads.confidence is not None:
            survival = rescaled_to_confidence(survival, self._heads.confidence(hidden).float().sigmoid().view(-1, 1))
        return Candidates(ranked.tokens.view(B, depths, -1), survival.reshape(B, depths, -1).contiguous())

    def _conditional(self, hidden: Tensor, state: BatchSlotState, budget: int) -> Trees:
        heads = self._heads
        B, depths, _ = hidden.shape
        best = self._head.best(hidden.flatten(0, 1), PAIRED)
        P = best.values.shape[1]
        columns = best.tokens.view(B, depths, P)  # column indices, not token ids: this head has no vocab
        tokens = columns if heads.vocab is None else heads.vocab[columns]
        anchors = state.tokens.view(B, 1, 1).expand(-1, -1, P)
        parents = torch.cat([anchors, tokens[:, :-1]], dim=1)  # [B, depths, P]: the anchor, then the previous depth
        scores = best.values.view(B, depths, 1, P) + heads.corrections(hidden, parents, columns)  # [B, depths, P, P]
        share = mass_share(best.log_sums, best.values, scores.flatten(0, 1)).view(B, depths, P)
        values, best_pairs = scores.flatten(0, 2).topk(min(CANDIDATES, P), dim=-1)  # [B depths P, k]
        best_below = BestTokens(  # a row for each parent
            values,
            tokens.unsqueeze(2).expand(-1, -1, P, -1).reshape(-1, P).gather(1, best_pairs),
            scores.flatten(0, 2).logsumexp(-1),
        )
        row_depths = torch.arange(depths, device=hidden.device).repeat_interleave(P)
        ranked = candidates(best_below, state.sampling_below(row_depths))
        survival = ranked.survival * share.reshape(-1, 1)
        if heads.confidence is not None:
            survival = rescaled_to_confidence(survival, heads.chances(heads.confidence, hidden, parents).view(-1, 1))
        shape = (B, depths, P, values.shape[1])
        return _grown(tokens, Candidates(ranked.tokens.view(shape), survival.view(shape)), budget)


def _grown(tokens: Tensor, children: Candidates, budget: int) -> Trees:
    """Grows trees level by level.

    Args:
        tokens: [B, depths, P]. Candidates of each depth, which are the parents of the next depth.
        children: [B, depths, P, k]. Candidates below each candidate of the previous depth. At depth 0 the P entries are
            equal, because the only parent is the anchor.
    """
    B, depths, _, k = children.tokens.shape
    width = min(_WIDTH, k)
    pool = Pool.empty(B, k + (depths - 1) * width * k, tokens.device)
    pool.add_level(0, None, children.tokens[:, 0, :1], children.survival[:, 0, :1])
    first, count = 0, k  # the latest level: its first node and number of nodes
    for depth in range(1, depths):
        nodes = pool.frontier(first, count, width)  # [B, W]
        matches = pool.tokens.gather(1, nodes).unsqueeze(-1) == tokens[:, depth - 1].unsqueeze(1)  # [B, W, P]
        indices = matches.int().argmax(-1).unsqueeze(-1).expand(-1, -1, k)  # [B, W, k]
        first, count = first + count, width * k
        level = slice(depth, depth + 1)
        offered = [part[:, level].squeeze(1).gather(1, indices) for part in (children.tokens, children.survival)]
        pool.add_level(first, nodes, *offered)
    return pool.trees(budget)
