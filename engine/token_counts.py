"""Counts of one sequence's tokens, kept from step to step, so that penalties cost the same for any length of answer."""

from collections.abc import Sequence

import torch


class TokenCounts:
    """
    in_text: [V] bool, tokens in the prompt or the answer.
    in_answer: [V] float32, how often each token occurs in the answer.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.in_text = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.in_answer = torch.zeros(vocab_size, device=device)
        self._num_counted = 0

    def follow(self, tokens: Sequence[int], prompt_length: int) -> None:
        """Counts the tokens that were added since the last call; `tokens`: prompt and answer."""
        if self._num_counted > len(tokens):  # tokens were counted that did not become part of the answer
            self.in_text.zero_()
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
        ids = torch.tensor(tokens, dtype=torch.int64, device=self.in_text.device)
        self.in_text[ids] = True
        if is_answer:
            self.in_answer.index_add_(0, ids, torch.ones_like(ids, dtype=torch.float32))
