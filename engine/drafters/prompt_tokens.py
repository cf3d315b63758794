"""Lets a drafter propose the tokens of a request's own prompt, even those that are not in its draft vocabulary.

Names and numbers of a prompt are often repeated in its answer, but are rare in other answers, from which the draft
vocabulary was made. The drafter's head is therefore extended, for each request, by the target's lm_head rows of these
tokens. This only makes sense if the drafter's head consists of lm_head rows of the target, or was trained from them.

On CUDA there is no such extension, because the graphs of graph decoding read a head with a fixed number of rows.

Shape letters: M rows, H hidden size, E tokens of a prompt, V and Vd the target's and the draft vocabulary.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from engine.models.base import Model
from kernels.linear import LinearWeight, linear, pack

MAX_TOKENS = 256  # per request; bounds the time of the product with a long prompt's tokens
_NEVER = -1e30  # logit of unused columns; their probability is 0 in float32


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens of a prompt that are not in the draft vocabulary.

    tokens: [E] int64. head: [E, H], the target's lm_head rows of the tokens.
    """

    tokens: Tensor
    head: LinearWeight


class PromptVocabulary:
    """Keeps the `PromptTokens` of running requests."""

    def __init__(self, vocab: Tensor, model: Model) -> None:
        """vocab: [Vd] int64, the draft vocabulary."""
        self._vocab = frozenset(vocab.tolist())
        self._model = model
        self._kept: dict[str, PromptTokens | None] = {}

    def of(self, request_id: str, prompt: Many[int]) -> PromptTokens | None:
        """Returns the prompt's tokens outside the draft vocabulary; None if there are none."""
        if request_id not in self._kept:
            self._kept[request_id] = self.make(prompt)
        return self._kept[request_id]

    def forget(self, request_id: str) -> None:
        self._kept.pop(request_id, None)

    def make(self, prompt: Many[int]) -> PromptTokens | None:
        """Like `of`, but keeps nothing. Returns at most `MAX_TOKENS` tokens: those that occur last in the prompt."""
        missing = [token for token in dict.fromkeys(reversed(prompt)) if token not in self._vocab][:MAX_TOKENS]
        if not missing:
            return None
        tokens = torch.tensor(missing, dtype=torch.int64)
        return PromptTokens(tokens, pack(self._model.lm_head[tokens]))


def prompt_vocabulary(enabled: bool, vocab: Tensor, model: Model) -> PromptVocabulary | None:
    """Returns a `PromptVocabulary`, or None on CUDA.

    Also returns None if the speculator was trained without prompt tokens (`enabled` is false).
    """
    return PromptVocabulary(vocab, model) if enabled and model.device.type == "cpu" else None


def extend(logits: Tensor, features: Tensor, vocab: Tensor, extras: Many[PromptTokens | None]) -> tuple[Tensor, Tensor]:
    """Appends the logits of prompt tokens.

    Args:
        logits: [M, Vd] float32, of the draft vocabulary `vocab` [Vd] int64.
        features: [M, H], the input of the head.
        extras: [M]. The prompt tokens of each row's request. Rows of a request must be adjacent.

    Returns: logits [M, Vd + E] and tokens [M, Vd + E]. If no row has prompt tokens, `logits` and `vocab` are returned.
    """
    width = max((len(extra.tokens) for extra in extras if extra is not None), default=0)
    if not width:
        return logits, vocab
    M, Vd = logits.shape
    wide = torch.cat([logits, logits.new_full((M, width), _NEVER)], dim=-1)
    tokens = torch.cat([vocab.expand(M, -1), vocab.new_zeros(M, width)], dim=-1)
    first = 0
    for _, group in groupby(extras, key=id):
        extra, *others = group
        end = first + 1 + len(others)
        if extra is not None:
            columns = slice(Vd, Vd + len(extra.tokens))
            wide[first:end, columns] = linear(features[first:end], extra.head)
            tokens[first:end, columns] = extra.tokens
        first = end
    return wide, tokens
