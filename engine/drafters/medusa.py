"""Drafts with Medusa heads: candidates for every depth from one pass over the taps, a best-first tree among them."""

from collections.abc import Sequence as Many
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.draft import Draft, grow_tree
from engine.drafters.medusa_heads import MedusaHeads
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
        self._layers = self._pack_layers(heads, model)
        shared = model.lm_head[self._vocab] if heads.head is None else None  # [Vd, H]
        self._heads: list[LinearWeight] = (
            [pack(shared)]
            if shared is not None
            else [pack(head.detach().to(model.device, model.dtype)) for head in heads.head or ()]
        )

    @classmethod
    def load(cls, folder: Path, model: Decoder) -> "MedusaDrafter":
        """Raises: SpeculatorNotLoadable."""
        return cls(MedusaHeads.load(folder), model)

    @staticmethod
    def _pack_layers(heads: MedusaHeads, model: Decoder) -> list[list[LinearWeight]]:
        return [
            [
                pack(weight.to(model.device, model.dtype), bias.to(model.device))
                for weight, bias in zip(*layer, strict=True)
            ]
            for layer in zip(heads.weight.detach(), heads.bias.detach(), strict=True)
        ]

    @torch.inference_mode()
    def candidates(self, taps: Tensor) -> tuple[Tensor, Tensor]:
        """taps [B, H] -> token ids and probabilities [B, K, k] of the k best at each depth, best first."""
        per_head = []
        for head in range(self.max_depth):
            x = taps.float()
            for layer in self._layers:
                x = x + functional.silu(linear(x.to(self._dtype), layer[head]))
            per_head.append(linear(x.to(self._dtype), self._heads[head if len(self._heads) > 1 else 0]))
        probabilities = torch.stack(per_head, dim=1).softmax(-1)  # [B, K, Vd]
        best = probabilities.topk(min(CANDIDATES, probabilities.shape[-1]), dim=-1)
        return self._vocab[best.indices], best.values

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        taps = [sequence.tap for sequence in sequences]
        if any(tap is None for tap in taps):
            raise DrafterError("medusa needs the hidden state of every sequence's last token")
        tokens, probabilities = self.candidates(torch.stack([tap for tap in taps if tap is not None]))
        return [grow_tree(t, p, budget) for t, p in zip(tokens.tolist(), probabilities.tolist(), strict=True)]

    def forget(self, request_id: str) -> None:
        pass
