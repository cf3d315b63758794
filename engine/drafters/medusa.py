"""The Medusa drafter: one pass over the heads proposes candidates for every depth, and a tree is grown from them."""

from collections.abc import Sequence as Many
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.draft import EMPTY_DRAFT, Draft, grow_tree
from engine.drafters.base import Drafter, Pass
from engine.drafters.choice import Candidates, choose
from engine.drafters.medusa_heads import MedusaHeads, token_features
from engine.drafters.prompt_tokens import PromptTokens, extend, prompt_vocabulary
from engine.errors import SpeculatorNotLoadable
from engine.models.base import Model
from engine.request import SamplingParams
from engine.sequence import Sequence
from kernels.linear import LinearWeight, linear, pack_draft
from kernels.medusa import medusa_heads

CANDIDATES = 8  # per depth

# Shape letters: B sequences, K heads, H hidden size, V and Vd the target's and the draft vocabulary, k candidates.


class MedusaDrafter(Drafter):
    name = "medusa"

    def __init__(self, heads: MedusaHeads, model: Model) -> None:
        """Raises: SpeculatorNotLoadable: the heads do not fit the model's sizes."""
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
        self._last_hidden: dict[str, Tensor] = {}  # request id -> [H], as `last_hidden` returns it
        self.hidden_size, self.dtype = config.hidden_size, model.dtype
        self.vocab = heads.draft_vocab.to(model.device)
        self._prompts = prompt_vocabulary(config.prompt_tokens, self.vocab, model)
        self._embedding = model.weights.embedding if config.token_input else None
        self._first, *self._rest = self._pack_layers(heads, model)
        shared = model.lm_head[self.vocab] if heads.head is None else None  # [Vd, H]
        untied: list[Tensor] = [] if heads.head is None else list(heads.head.detach())
        self.heads = [
            pack_draft(head.to(model.device, model.dtype)) for head in (untied if shared is None else [shared])
        ]

    @classmethod
    def load(cls, folder: Path, model: Model) -> "MedusaDrafter":
        """Raises: SpeculatorNotLoadable."""
        return cls(MedusaHeads.load(folder), model)

    @staticmethod
    def _pack_layers(heads: MedusaHeads, model: Model) -> list[list[LinearWeight]]:
        """Packs the weights of the heads for as few products as possible.

        The first layers of all heads have the same input and form one product. Later layers form one product per head.

        Returns: for each layer, one weight per product.
        """
        weights: list[Tensor] = list(heads.weight.detach().to(model.device, model.dtype))  # [K, H, H] each
        biases = heads.bias.detach().to(model.device)
        if heads.token_weight is not None:  # the input of the first layer is [hidden state, token]
            tokens = heads.token_weight.detach().to(model.device, model.dtype)
            weights[0] = torch.cat([weights[0], tokens], dim=-1)  # [K, H, 2 H]
        first = pack_draft(weights[0].flatten(0, 1), biases[0].flatten())
        return [[first]] + [
            [pack_draft(weight, bias) for weight, bias in zip(*layer, strict=True)]
            for layer in zip(weights[1:], biases[1:], strict=True)
        ]

    def candidates(self, hidden: Tensor, last_tokens: Tensor, prompt: Many[int] = ()) -> tuple[Tensor, Tensor]:
        """Returns ids and probabilities [B, K, k] of the k best tokens at each depth, best first, for greedy decoding.

        Args:
            hidden: [B, H]. The target's final hidden states.
            last_tokens: [B] int64. The tokens sampled from `hidden`.
            prompt: the request's prompt, which is the same for all rows.
        """
        greedy = SamplingParams(max_tokens=1, temperature=0.0)
        positions = [0] * len(hidden)  # any values will do, because greedy decoding draws no noise
        extra = None if self._prompts is None else self._prompts.make(prompt)
        best = self._choose(hidden, last_tokens, [greedy] * len(hidden), positions, [extra] * len(hidden))
        return best.tokens, best.survival

    @torch.inference_mode()
    def _choose(
        self,
        hidden: Tensor,
        last_tokens: Tensor,
        sampling: Many[SamplingParams],
        positions: Many[int],
        extras: Many[PromptTokens | None],
    ) -> Candidates:
        """Returns candidates [B, K, k].

        positions: the position of each sequence's next token. extras: the prompt tokens of each sequence.
        """
        x = self.features(hidden, last_tokens)  # [B, K, H]
        B, K, _ = x.shape
        if len(self.heads) == 1:
            logits = linear(x.flatten(0, 1), self.heads[0])  # [B K, Vd]
        else:
            each = [linear(x[:, k].contiguous(), head) for k, head in enumerate(self.heads)]
            logits = torch.stack(each, dim=1).flatten(0, 1)
        rows = [(params, first + k) for params, first in zip(sampling, positions, strict=True) for k in range(K)]
        logits, vocab = extend(logits, x.flatten(0, 1), self.vocab, [extra for extra in extras for _ in range(K)])
        best = choose(logits, [row[0] for row in rows], [row[1] for row in rows], count=CANDIDATES, vocab=vocab)
        return Candidates(best.tokens.view(B, K, -1), best.survival.view(B, K, -1))

    def features(self, hidden: Tensor, last_tokens: Tensor) -> Tensor:
        """Computes MedusaHeads.features [B, K, H] in the model's dtype, with float32 between layers."""
        inputs = hidden.float()
        if self._embedding is not None:
            inputs = torch.cat([inputs, token_features(self._embedding[last_tokens])], dim=-1)  # [B, 2 H]
        if not self._rest:
            return medusa_heads(inputs.to(self.dtype), self._first[0], self.max_depth)
        update = linear(inputs.to(self.dtype), self._first[0]).view(hidden.shape[0], self.max_depth, -1)
        x = hidden.float().unsqueeze(1) + functional.silu(update)
        for layer in self._rest:
            inputs = x.to(self.dtype)
            updates = [linear(inputs[:, k].contiguous(), weight) for k, weight in enumerate(layer)]
            x = x + functional.silu(torch.stack(updates, dim=1))
        return x.to(self.dtype)

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        drafts = dict.fromkeys(sequences, EMPTY_DRAFT)
        ready = [sequence for sequence in sequences if sequence.request.request_id in self._last_hidden]
        if ready:
            hidden = torch.stack([self._last_hidden[sequence.request.request_id] for sequence in ready])
            last_tokens = torch.tensor([sequence.tokens[-1] for sequence in ready], device=hidden.device)
            sampling = [sequence.request.sampling for sequence in ready]
            extras = [self._prompt_tokens(sequence) for sequence in ready]
            lengths = [len(sequence.tokens) for sequence in ready]
            candidates = self._choose(hidden, last_tokens, sampling, lengths, extras)
            per_sequence = zip(candidates.tokens.tolist(), candidates.survival.tolist(), strict=True)
            drafts |= zip(
                ready, (grow_tree(*tokens_and_survival, budget) for tokens_and_survival in per_sequence), strict=True
            )
        return list(drafts.values())

    def observe(self, done: Pass) -> None:
        for kept in done.kept:
            self._last_hidden[kept.sequence.request.request_id] = done.hidden[kept.rows[-1]]

    def last_hidden(self, request_id: str) -> Tensor | None:
        """Returns the final hidden state [H] that the last token was sampled from; None if it was not observed."""
        return self._last_hidden.get(request_id)

    def forget(self, request_id: str) -> None:
        self._last_hidden.pop(request_id, None)
        if self._prompts is not None:
            self._prompts.forget(request_id)

    def _prompt_tokens(self, sequence: Sequence) -> PromptTokens | None:
        request = sequence.request
        return None if self._prompts is None else self._prompts.of(request.request_id, request.prompt_token_ids)
