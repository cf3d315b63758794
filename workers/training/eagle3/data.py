"""Batches of whole conversations for EAGLE-3.

A conversation is a prompt of P tokens and an answer c[0 .. N - 1]. The target's taps are known at its L = P + N - 1
positions; position t is read together with token t + 1. Anchor j (0 <= j < N - 1) is position P - 1 + j: c[j] is the
last known token there, and step s of the unroll drafts c[j + 1 + s] and is given c[j + 1 .. j + s].

    R rows      positions with taps, conversation after conversation
    A rows      anchors, conversation after conversation
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.data import IGNORED
from workers.training.hidden_states import TapRows


@dataclass(frozen=True, slots=True)
class Eagle3Batch:
    """B conversations.

    taps: [R, T, Ht] float32.
    tokens: [R] int64. The token after each position.
    positions: [R] int64.
    anchors: [A] int64. Each anchor's place among the R rows.
    drafted: [A, S] int64. The token given to step s: c[j + s]; at step 0 that of `tokens`. 0 past the answer's end.
    labels: [A, S] int64. c[j + 1 + s] as a place in the draft vocabulary; `IGNORED` past the end and outside of it.
    chosen: [A, S] int64. Row of `hidden` that chose c[j + 1 + s]; meaningless without a label.
    hidden: [A + B, Ht] float32. The target's final hidden states that chose the answers' tokens.
    keys: [B, Lmax] int64. Rows of each conversation, in order; padded with 0.
    places: [A] int64. Each anchor's place in a padded [B, Nmax] grid.
    reach: [B, Nmax] int64. How many of a conversation's keys each anchor reads; 0 where there is no anchor.
    """

    taps: Tensor
    tokens: Tensor
    positions: Tensor
    anchors: Tensor
    drafted: Tensor
    labels: Tensor
    chosen: Tensor
    hidden: Tensor
    keys: Tensor
    places: Tensor
    reach: Tensor


def make_batch(rows: TapRows, conversations: Sequence[int], *, steps: int, place: Tensor) -> Eagle3Batch:
    """place: [V + 1] int64. Each token's place in the draft vocabulary or `IGNORED`; the last entry is `IGNORED`."""
    device = rows.taps.device
    lengths = [rows.starts[c + 1] - rows.starts[c] for c in conversations]
    prompts = [rows.prompt_lengths[c] for c in conversations]
    answers = [length - prompt + 1 for length, prompt in zip(lengths, prompts, strict=True)]  # N
    taken = torch.cat([torch.arange(rows.starts[c], rows.starts[c + 1]) for c in conversations]).to(device)
    keys = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    reach = torch.zeros(len(lengths), max(answers) - 1, dtype=torch.int64)
    anchors, places, told, labels, chosen, hidden = [], [], [], [], [], []
    first, num_hidden = 0, 0
    for index, (c, length, prompt, answer) in enumerate(zip(conversations, lengths, prompts, answers, strict=True)):
        keys[index, :length] = torch.arange(first, first + length)
        reach[index, : answer - 1] = torch.arange(prompt, length)
        anchors.append(torch.arange(first + prompt - 1, first + length - 1))
        places.append(index * reach.shape[1] + torch.arange(answer - 1))
        completion = rows.tokens[rows.starts[c] + prompt - 1 : rows.starts[c + 1]]  # c[0 .. N - 1]
        at = torch.arange(answer - 1)[:, None] + torch.arange(steps + 1)  # [N - 1, S + 1]: which token
        padded = torch.cat([completion, completion.new_full((steps + 1,), IGNORED)])[at.to(device)]
        told.append(padded[:, :-1].clamp(min=0))
        labels.append(place[padded[:, 1:]])
        chosen.append(num_hidden + at[:, 1:].clamp(max=answer - 1))
        hidden.append(rows.hidden[rows.answer_starts[c] : rows.answer_starts[c + 1]])
        first, num_hidden = first + length, num_hidden + answer
    return Eagle3Batch(
        taps=rows.taps[taken].float(),
        tokens=rows.tokens[taken],
        positions=rows.positions[taken],
        anchors=torch.cat(anchors).to(device),
        drafted=torch.cat(told),
        labels=torch.cat(labels),
        chosen=torch.cat(chosen).to(device),
        hidden=torch.cat(hidden).float(),
        keys=keys.to(device),
        places=torch.cat(places).to(device),
        reach=reach.to(device),
    )
