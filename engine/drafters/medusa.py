"""Drafts with Medusa heads: candidates for every depth from one pass over the taps, a best-first tree among them."""

from collections.abc import Sequence as Many
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.draft import Draft, grow_tree
from engine.drafters.base import Drafter, Pass
from engine.drafters.medusa_heads import MedusaHeads, token_features
from engine.errors import DrafterError, SpeculatorNotLoadable
from engine.model import Decoder
from engine.sequence import Sequence
from kernels.linear import LinearWeight, linear, pack

CANDIDATES = 8  # per depth


class MedusaDrafter(Drafter):
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
        self._taps: dict[str, Tensor] = {}  # request -> [H]: the hidden state that chose its last token
        self._dtype = model.dtype
        self._vocab = heads.draft_vocab.to(model.device)
        self._embedding = model.weights.embedding if config.token_input else None
        self._first, *self._rest = self._pack_layers(heads, model)
        shared = model.lm_head[self._vocab] if heads.head is None else None  # [Vd, H]
        untied: list[Tensor] = [] if heads.head is None else list(heads.head.detach())
        self._heads = [pack(head.to(model.device, model.dtype)) for head in (untied if shared is None else [shared])]

    @classmethod
    def load(cls, folder: Path, model: Decoder) -> "MedusaDrafter":
        """Raises: SpeculatorNotLoadable."""
        return cls(MedusaHeads.load(folder), model)

    @staticmethod
    def _pack_layers(heads: MedusaHeads, model: Decoder) -> list[list[LinearWeight]]:
        """Of the first layer one product for all heads, since they read the same; of the others one per head."""
        weights: list[Tensor] = list(heads.weight.detach().to(model.device, model.dtype))  # [K, H, H] each
        biases = heads.bias.detach().to(model.device)
        if heads.token_weight is not None:  # the first layer reads hidden state and token side by side
            tokens = heads.token_weight.detach().to(model.device, model.dtype)
            weights[0] = torch.cat([weights[0], tokens], dim=-1)  # [K, H, 2 H]
        first = pack(weights[0].flatten(0, 1), biases[0].flatten())
        return [[first]] + [
            [pack(weight, bias) for weight, bias in zip(*layer, strict=True)]
            for layer in zip(weights[1:], biases[1:], strict=True)
        ]

    @torch.inference_mode()
    def candidates(self, taps: Tensor, last_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids and probabilities [B, K, k] of the k best at each depth, best first.

        Args:
            taps: [B, H].
            last_tokens: [B] int64. What the taps chose.
        """
        x = self._features(taps, last_tokens).to(self._dtype)  # [B, K, H]
        B, K, _ = x.shape
        if len(self._heads) == 1:
            logits = linear(x.flatten(0, 1), self._heads[0]).view(B, K, -1)
        else:
            logits = torch.stack([linear(x[:, k].contiguous(), head) for k, head in enumerate(self._heads)], dim=1)
        probabilities = logits.softmax(-1)  # [B, K, Vd]
        best = probabilities.topk(min(CANDIDATES, probabilities.shape[-1]), dim=-1)
        return self._vocab[best.indices], best.values

    def _features(self, taps: Tensor, last_tokens: Tensor) -> Tensor:
        """[B, K, H] float32, as MedusaHeads.features."""
        read = taps.float()
        if self._embedding is not None:
            read = torch.cat([read, token_features(self._embedding[last_tokens])], dim=-1)  # [B, 2 H]
        update = linear(read.to(self._dtype), self._first[0]).view(taps.shape[0], self.max_depth, -1)
        x = taps.float().unsqueeze(1) + functional.silu(update)
        for layer in self._rest:
            read = x.to(self._dtype)
            updates = [linear(read[:, k].contiguous(), weight) for k, weight in enumerate(layer)]
            x = x + functional.silu(torch.stack(updates, dim=1))
        return x

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        taps = [self._taps.get(sequence.request.request_id) for sequence in sequences]
        if any(tap is None for tap in taps):
            raise DrafterError("medusa needs the hidden state of every sequence's last token")
        stacked = torch.stack([tap for tap in taps if tap is not None])
        last_tokens = torch.tensor([sequence.tokens[-1] for sequence in sequences], device=stacked.device)
        tokens, probabilities = self.candidates(stacked, last_tokens)
        return [grow_tree(t, p, budget) for t, p in zip(tokens.tolist(), probabilities.tolist(), strict=True)]

    def observe(self, done: Pass) -> None:
        for kept in done.kept:
            self._taps[kept.sequence.request.request_id] = done.hidden[kept.rows[-1]]

    def forget(self, request_id: str) -> None:
        self._taps.pop(request_id, None)
