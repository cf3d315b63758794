"""Builds trees from the hidden states of blocks, with optional Markov and confidence heads.

With a Markov head, the candidates below a node depend on the node's token. The tokens with the highest logits at each
depth are called paired candidates. All pairs of such candidates at two adjacent depths are scored at once, with the
Markov head's correction latent(parent) W2[child] (block_model.py). The logits of other tokens are not corrected.

    score(child | parent) = logit(child) + latent(parent) W2[child]      survival: softmax of the score over all tokens

A confidence head predicts the probability c that the best candidate will be accepted. The other candidates share the
probability 1 - c, but none gets more than c.

Shape letters: S sequences, H hidden size, P paired candidates, Vd draft vocabulary, R rows, k candidates of a row.
"""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.draft import Draft, grow_tree
from engine.drafters.block_model import BlockModel, ConfidenceHead
from engine.drafters.block_tree import PairTable, grow_conditional_tree
from engine.drafters.choice import choose
from engine.models.base import Model
from engine.request import SamplingParams
from kernels.linear import LinearWeight, linear, pack_draft
from kernels.top_k import top_k

CANDIDATES = 8  # maximum children of a node
PAIRED = 24  # paired candidates per depth; a Markov head scores the square of this number


@dataclass(frozen=True, slots=True)
class Anchor:
    """A sequence's last token, with which its block begins."""

    token: int
    position: int
    sampling: SamplingParams


class BlockHeads:
    """The lm_head, Markov head and confidence head, which read the predicting rows of blocks."""

    def __init__(self, block: BlockModel, model: Model) -> None:
        self.config = block.config
        self._model = model
        self.own_head = _own_head(block, model)
        reduced = block.config.draft_vocab_size < block.config.vocab_size
        self.vocab = block.draft_vocab.to(model.device) if reduced else None
        self.markov = deepcopy(block.markov_head)
        self.confidence = deepcopy(block.confidence_head)
        for head in (self.markov, self.confidence):
            if head is not None:
                head.to(model.device, model.dtype)

    def drafts(self, hidden: Tensor, anchors: list[Anchor], budget: int) -> list[Draft]:
        """Returns a draft for each anchor. hidden: [S, depths, H] in the model's dtype, the predicting rows."""
        S, depths, H = hidden.shape
        rows = hidden.reshape(S * depths, H)
        logits = self._model.logits(rows) if self.own_head is None else linear(rows, self.own_head)  # [S * depths, Vd]
        if self.markov is None:
            return self._independent(logits, hidden, anchors, budget)
        return self._conditional(logits, hidden, anchors, budget)

    def _independent(self, logits: Tensor, hidden: Tensor, anchors: list[Anchor], budget: int) -> list[Draft]:
        S, depths, _ = hidden.shape
        sampling = [anchor.sampling for anchor in anchors for _ in range(depths)]
        positions = [anchor.position + depth for anchor in anchors for depth in range(1, depths + 1)]
        candidates = choose(logits, sampling, positions, count=CANDIDATES, vocab=self.vocab)
        survival = candidates.survival
        if self.confidence is not None:
            survival = rescaled_to_confidence(survival, self.confidence(hidden).float().sigmoid().view(-1, 1))
        shape = (S, depths, -1)
        tokens, chances = candidates.tokens.view(shape).tolist(), survival.view(shape).tolist()
        return [grow_tree(t, p, budget) for t, p in zip(tokens, chances, strict=True)]

    def _conditional(self, logits: Tensor, hidden: Tensor, anchors: list[Anchor], budget: int) -> list[Draft]:
        S, depths, _ = hidden.shape
        # [S * depths, P] logits and draft vocabulary indices, [S * depths] logsumexp of all logits
        values, columns, masses = top_k(logits, min(PAIRED, logits.shape[-1]))
        columns = columns.view(S, depths, -1)
        tokens = columns if self.vocab is None else self.vocab[columns]
        first = torch.tensor([anchor.token for anchor in anchors], device=tokens.device)
        parents = torch.cat([first.view(S, 1, 1).expand(-1, -1, tokens.shape[-1]), tokens[:, :-1]], dim=1)
        # parents [S, depths, P]: the candidates of the previous depth; at the first depth, the anchor P times
        scores = values.view(S, depths, 1, -1) + self.corrections(hidden, parents, columns)  # [S, depths, P, P]
        share = mass_share(masses, values, scores.flatten(0, 1))
        P = tokens.shape[-1]
        candidates = choose(
            scores.view(-1, P),
            [anchor.sampling for anchor in anchors for _ in range(depths * P)],
            [anchor.position + depth for anchor in anchors for depth in range(1, depths + 1) for _ in range(P)],
            count=CANDIDATES,
            vocab=tokens.unsqueeze(2).expand(-1, -1, P, -1).reshape(-1, P),
        )
        survival = candidates.survival * share.view(-1, 1)
        if self.confidence is not None:
            survival = rescaled_to_confidence(survival, self.chances(self.confidence, hidden, parents).view(-1, 1))
        shape = (S, depths, P, -1)
        children, chances = candidates.tokens.view(shape).cpu().numpy(), survival.view(shape).cpu().numpy()
        tables = (PairTable(tokens[s].tolist(), children[s], chances[s]) for s in range(S))
        return [grow_conditional_tree(table, budget) for table in tables]

    def corrections(self, hidden: Tensor, parents: Tensor, columns: Tensor) -> Tensor:
        """Returns the Markov head's correction of each candidate's logit below each parent, [S, depths, P, P] float32.

        hidden [S, depths, H]; parents [S, depths, P] token ids; columns [S, depths, P] draft vocabulary indices.
        """
        assert self.markov is not None
        wide = hidden.unsqueeze(2).expand(-1, -1, parents.shape[-1], -1)
        latent = self.markov.latent(wide, parents).float()
        return latent @ self.markov.markov_w2.weight[columns].float().transpose(-1, -2)

    def chances(self, head: ConfidenceHead, hidden: Tensor, parents: Tensor) -> Tensor:
        """Returns the confidence in the best candidate below each parent, [S, depths, P] float32.

        The product of a hidden state and the weights is computed once for all parents.
        """
        weight, bias = head.proj.weight[0].float(), head.proj.bias.float()
        logits = (hidden.float() @ weight[: hidden.shape[-1]] + bias).unsqueeze(-1).expand(parents.shape)
        if self.markov is not None and self.config.confidence_with_markov:
            logits = logits + self.markov.markov_w1(parents).float() @ weight[hidden.shape[-1] :]
        return logits.sigmoid()


def rescaled_to_confidence(survival: Tensor, confidence: Tensor) -> Tensor:
    """Rescales survival [R, k]: the first candidate gets the confidence c [R, 1], and the others share 1 - c.

    The candidates of a row stay in descending order, because none gets more than the first.
    """
    others = survival[:, 1:] / (1.0 - survival[:, :1]).clamp(min=1e-6)
    return torch.cat([confidence, torch.minimum(confidence, 1.0 - confidence) * others.clamp(max=1.0)], dim=-1)


def mass_share(total: Tensor, values: Tensor, scores: Tensor) -> Tensor:
    """Returns the probability that the paired candidates have together below each parent, [R, P].

    total [R]: logsumexp of all uncorrected logits. values [R, P]: uncorrected logits of the paired candidates.
    scores [R, P, P]: their corrected logits below each parent.
    """
    paired = (values.logsumexp(-1) - total).clamp(max=-1e-6)  # negative, so that the next line's log is finite
    others = total + torch.log(-torch.expm1(paired))  # [R] logsumexp of the logits of all other tokens
    return torch.sigmoid(scores.logsumexp(-1) - others.unsqueeze(-1))


def _own_head(block: BlockModel, model: Model) -> LinearWeight | None:
    """Returns the drafter's own lm_head, or the target's lm_head rows of the draft vocabulary.

    Returns None if the drafter uses the target's whole lm_head.
    """
    vocab = block.draft_vocab.to(model.device)
    rows = model.lm_head if len(vocab) == model.config.vocab_size else model.lm_head[vocab]
    own = None if block.lm_head is None else block.lm_head.weight.to(model.device, model.dtype)
    if own is not None and not torch.equal(own, rows):
        return pack_draft(own)
    return None if len(vocab) == model.config.vocab_size else pack_draft(rows)
