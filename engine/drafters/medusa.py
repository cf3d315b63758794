"""Drafts with Medusa heads: candidates for every depth from one pass over the taps, a best-first tree among them."""

from collections.abc import Sequence as Many
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.draft import Draft, grow_tree
from engine.drafters.medusa_heads import MedusaHeads, token_features
from engine.errors import DrafterError, SpeculatorNotLoadable
from engine.model import Decoder
from engine.sequence import Sequence
from kernels.linear import LinearWeight, linear, pack

CANDIDATES = 8  # per depth


class MedusaDrafter:
    name = "medusa"

    def __init__(self, heads: MedusaHeads, model: Decoder) -> None:
        """Raises: SpeculatorNotLoadable: the heads belong to a model of another size."""
        config = heads.config
        if config.hidden_size != model.config.hidden_size:
            raise SpeculatorNotLoadable(
                f"heads are for hidden size {config.hidden_size}, the model has {model.config.hidden_size}"
            )
        if int(heads.draft_vocab.max()) >= model.config.vocab_size:
            raise SpeculatorNotLoadable(
                f"heads propose token {int(heads.draft_vocab.max())}, the model has {model.config.vocab_size}"
            )
        self.max_depth = config.num_heads
        self._dtype = model.dtype
        self._vocab = heads.draft_vocab.to(model.device)
        self._embedding = model.weights.embedding if config.token_input else None
        self._layers = self._pack_layers(heads, model)
        shared = model.lm_head[self._vocab] if heads.head is None else None  # [Vd, H]
        self._heads: list[LinearWeight] = (
            [pack(shared)]
            if shared is not None
            else [
                pack(head.detach().to(model.device, model.dtype)) for head in ([] if heads.head is None else heads.head)
            ]
        )

    @classmethod
    def load(cls, folder: Path, model: Decoder) -> "MedusaDrafter":
        """Raises: SpeculatorNotLoadable."""
        return cls(MedusaHeads.load(folder), model)

    @staticmethod
    def _pack_layers(heads: MedusaHeads, model: Decoder) -> list[list[LinearWeight]]:
        weights: list[Tensor] = list(heads.weight.detach())
        if heads.token_weight is not None:  # the first layer reads hidden state and token side by side
            weights[0] = torch.cat([weights[0], heads.token_weight.detach()], dim=-1)  # [K, H, 2 H]
        return [
            [
                pack(weight.to(model.device, model.dtype), bias.to(model.device))
                for weight, bias in zip(*layer, strict=True)
            ]
            for layer in zip(weights, heads.bias.detach(), strict=True)
        ]

    @torch.inference_mode()
    def candidates(self, taps: Tensor, last_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids and probabilities [B, K, k] of the k best at each depth, best first.

        Args:
            taps: [B, H].
            last_tokens: [B] int64. What the taps chose.
        """
        per_head = []
        tokens = None if self._embedding is None else token_features(self._embedding[last_tokens])
        for head in range(self.max_depth):
            x = taps.float()
            for index, layer in enumerate(self._layers):
                read = x if tokens is None or index > 0 else torch.cat([x, tokens], dim=-1)
                x = x + functional.silu(linear(read.to(self._dtype), layer[head]))
            per_head.append(linear(x.to(self._dtype), self._heads[head if len(self._heads) > 1 else 0]))
        probabilities = torch.stack(per_head, dim=1).softmax(-1)  # [B, K, Vd]
        best = probabilities.topk(min(CANDIDATES, probabilities.shape[-1]), dim=-1)
        return self._vocab[best.indices], best.values

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        taps = [sequence.tap for sequence in sequences]
        if any(tap is None for tap in taps):
            raise DrafterError("medusa needs the hidden state of every sequence's last token")
        stacked = torch.stack([tap for tap in taps if tap is not None])
        last_tokens = torch.tensor([sequence.tokens[-1] for sequence in sequences], device=stacked.device)
        tokens, probabilities = self.candidates(stacked, last_tokens)
        return [grow_tree(t, p, budget) for t, p in zip(tokens.tolist(), probabilities.tolist(), strict=True)]

    def forget(self, request_id: str) -> None:
        pass
