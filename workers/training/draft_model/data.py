"""Batches of whole conversations for a draft model, which reads only tokens, no hidden states of the target.

A conversation is a prompt of P tokens and an answer c[0], c[1], ... The draft model reads c[j] at position P + j and
predicts c[j + 1]. It never drafts c[0], which the target samples in the prefill.

Shape letters: B conversations; L is the number of input tokens of the longest conversation, A the number of predicted
tokens of all conversations; H and V are the target's hidden size and vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.hidden_states import TapRows


@dataclass(frozen=True, slots=True)
class DraftModelBatch:
    """The inputs and labels of the draft model.

    tokens: [B, L] int64, the tokens at positions 0 .. L - 1; 0 past a conversation's end.
    flat_index: [A] int64. Indices in `tokens.flatten()` of the positions that predict a token.
    labels: [A] int64. Index of the predicted token in the draft vocabulary; `IGNORED` for tokens that are not in it.
    hidden: [A, H] float32. The final hidden states from which the target sampled the predicted tokens.
    """

    tokens: Tensor
    flat_index: Tensor
    labels: Tensor
    hidden: Tensor


def make_batch(rows: TapRows, conversations: Sequence[int], *, draft_index: Tensor) -> DraftModelBatch:
    """draft_index: [V + 1] int64, from `workers.training.data.draft_indices`."""
    lengths = [rows.starts[c + 1] - rows.starts[c] for c in conversations]
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.int64, device=rows.tokens.device)
    flat_index, labels, hidden = [], [], []
    for index, (c, length) in enumerate(zip(conversations, lengths, strict=True)):
        # following[t] is the token after position t
        following, prompt = rows.tokens[rows.starts[c] : rows.starts[c + 1]], rows.prompt_lengths[c]
        tokens[index, 0] = rows.first_tokens[c]
        tokens[index, 1:length] = following[:-1]
        flat_index.append(index * tokens.shape[1] + torch.arange(prompt, length, device=tokens.device))
        labels.append(draft_index[following[prompt:]])
        hidden.append(rows.hidden[rows.answer_starts[c] + 1 : rows.answer_starts[c + 1]])
    return DraftModelBatch(tokens, torch.cat(flat_index), torch.cat(labels), torch.cat(hidden).float())
