"""Counts of one sequence's tokens, kept from step to step, so that a step does not read the whole answer again."""

from collections.abc import Sequence

import torch
from torch import Tensor


class TokenCounts:
    """in_answer: [V] float32, how often each token occurs in the answer."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.in_answer = torch.zeros(vocab_size, device=device)
        self._ids = torch.zeros(vocab_size, dtype=torch.int64, device=device)
        self._seen: set[int] = set()
        self._num_counted = 0

    @property
    def ids(self) -> Tensor:
        """The distinct tokens that occur in the prompt or the answer, [n] int64. n is far below the vocabulary size."""
        return self._ids[: len(self._seen)]

    def follow(self, tokens: Sequence[int], prompt_length: int) -> None:
        """Counts the tokens that were added since the last call; `tokens`: prompt and answer."""
        if self._num_counted > len(tokens):  # some counted tokens were rejected and are not part of the answer
            self._seen.clear()
            self.in_answer.zero_()
            self._num_counted = 0
        self._add(tokens[self._num_counted : prompt_length], is_answer=False)
        self._add(tokens[max(self._num_counted, prompt_length) :], is_answer=True)

    def accept(self, token: int) -> None:
        """Counts the next token of the answer."""
        self._add((token,), is_answer=True)

    def _add(self, tokens: Sequence[int], *, is_answer: bool) -> None:
        if not tokens:
            return
        self._num_counted += len(tokens)
        new = [token for token in dict.fromkeys(tokens) if token not in self._seen]
        if new:
            first = len(self._seen)
            self._ids[first : first + len(new)] = torch.tensor(new, device=self._ids.device)
            self._seen.update(new)
        if is_answer:
            ids = torch.tensor(tokens, dtype=torch.int64, device=self._ids.device)
            self.in_answer.index_add_(0, ids, torch.ones_like(ids, dtype=torch.float32))
