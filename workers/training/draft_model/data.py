"""Batches of whole conversations for a draft model, which reads tokens alone.

It reads the answer's token c[j] at position P + j and is to guess c[j + 1]; c[0] is the target's, from the prefill.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.hidden_states import TapRows


@dataclass(frozen=True, slots=True)
class DraftModelBatch:
    """B conversations.

    tokens: [B, L] int64, of positions 0 .. L - 1; 0 past a conversation's end.
    places: [A] int64. Where in the flattened [B L] something is to be guessed.
    labels: [A] int64. As a place in the draft vocabulary; `IGNORED` outside of it.
    hidden: [A, H] float32. The target's final hidden states that chose the labels.
    """

    tokens: Tensor
    places: Tensor
    labels: Tensor
    hidden: Tensor


def make_batch(rows: TapRows, conversations: Sequence[int], *, place: Tensor) -> DraftModelBatch:
    """place: [V] int64. Each token's place in the draft vocabulary or `IGNORED`."""
    lengths = [rows.starts[c + 1] - rows.starts[c] for c in conversations]
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.int64, device=rows.tokens.device)
    places, labels, hidden = [], [], []
    for index, (c, length) in enumerate(zip(conversations, lengths, strict=True)):
        following, prompt = rows.tokens[rows.starts[c] : rows.starts[c + 1]], rows.prompt_lengths[c]
        tokens[index, 0] = rows.first_tokens[c]
        tokens[index, 1:length] = following[:-1]
        places.append(index * tokens.shape[1] + torch.arange(prompt, length, device=tokens.device))
        labels.append(place[following[prompt:]])
        hidden.append(rows.hidden[rows.answer_starts[c] + 1 : rows.answer_starts[c + 1]])
    return DraftModelBatch(tokens, torch.cat(places), torch.cat(labels), torch.cat(hidden).float())
