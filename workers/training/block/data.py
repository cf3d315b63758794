"""Blocks at anchors of a conversation.

A conversation is a prompt of P tokens and an answer c[0 .. N - 1]; the target's taps are known at positions 0 .. P + N
- 2. Anchor j (0 <= j < N - 1) is the answer's token c[j], at position P + j: the taps before that position are its
context, and depth d of its block is to guess c[j + 1 + d], which the target chose with hidden state j + 1 + d.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.data import IGNORED
from workers.training.hidden_states import TapRows


@dataclass(frozen=True, slots=True)
class Blocks:
    """A blocks of one conversation, D deep.

    taps: [S, T, H] float32. Of positions 0 .. S - 1.
    anchors: [A] int64. Positions.
    tokens: [A, D + 1] int64. The anchor and those that follow it; 0 past the answer's end.
    labels: [A, D] int64. What each depth is to guess, as a place in the draft vocabulary; `IGNORED` past the end and
        outside of it.
    hidden: [A, D, H] float32. The target's final hidden states that chose them; meaningless without a label.
    """

    taps: Tensor
    anchors: Tensor
    tokens: Tensor
    labels: Tensor
    hidden: Tensor


def num_anchors(rows: TapRows, conversation: int) -> int:
    """N - 1."""
    return rows.starts[conversation + 1] - rows.starts[conversation] - rows.prompt_lengths[conversation]


def blocks_of(rows: TapRows, conversation: int, chosen: Tensor, *, depths: int, place: Tensor) -> Blocks:
    """The blocks at anchors `chosen` [A] int64, each below `num_anchors`.

    place: [V + 1] int64. Each token's place in the draft vocabulary or `IGNORED`; the last entry is `IGNORED`.
    """
    start, end = rows.starts[conversation], rows.starts[conversation + 1]
    prompt = rows.prompt_lengths[conversation]
    completion = rows.tokens[start + prompt - 1 : end]  # c[0 .. N - 1]
    chosen = chosen.to(completion.device)
    at = chosen.unsqueeze(1) + torch.arange(depths + 1, device=completion.device)  # [A, D + 1]
    tokens = torch.cat([completion, completion.new_full((depths + 1,), IGNORED)])[at]
    first = rows.answer_starts[conversation]
    chose = first + at[:, 1:].clamp(max=completion.shape[0] - 1)
    return Blocks(
        taps=rows.taps[start:end].float(),
        anchors=prompt + chosen,
        tokens=tokens.clamp(min=0),
        labels=place[tokens[:, 1:]],
        hidden=rows.hidden[chose].float(),
    )
