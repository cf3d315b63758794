"""Batches of whole conversations for EAGLE-3.

A conversation is a prompt of P tokens and an answer of N tokens c[0 .. N - 1]. The target's taps (intermediate hidden
states) are known at the first P + N - 1 positions. The drafter reads the taps of position t together with token t + 1.
A draft starts at each anchor. Anchor j (0 <= j < N - 1) is position P - 1 + j, so its next token is c[j]. Step s of the
unroll reads c[j + s] and predicts c[j + 1 + s].

Shape letters: B conversations, which have R positions and A anchors in total; S unroll steps; T taps; Ht and V are the
target's hidden size and vocabulary. The longest conversation has Lmax positions; Amax is the largest number of anchors
of a conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.data import IGNORED
from workers.training.hidden_states import TapRows


@dataclass(frozen=True, slots=True)
class Eagle3Batch:
    """The inputs and labels of all unroll steps for B conversations.

    taps: [R, T, Ht] float32.
    tokens: [R] int64. The token after each position.
    positions: [R] int64.
    anchors: [A] int64. Each anchor's row among the R rows.
    input_tokens: [A, S] int64. The token c[j + s] that step s reads; 0 past the answer's end.
    labels: [A, S] int64. Index of c[j + 1 + s] in the draft vocabulary; `IGNORED` past the answer's end and for tokens
        that are not in the draft vocabulary.
    target_rows: [A, S] int64. Row of `hidden` from which c[j + 1 + s] was sampled; meaningless where the label is
        `IGNORED`.
    hidden: [A + B, Ht] float32. The target's final hidden states, one for each token of the answers.
    keys: [B, Lmax] int64. Rows of each conversation's positions among the R rows, in order; padded with 0.
    grid_index: [A] int64. Each anchor's index in the flattened grid [B, Amax].
    num_keys: [B, Amax] int64. Number of keys that each anchor attends to, from the conversation's first; 0 for padding.
    """

    taps: Tensor
    tokens: Tensor
    positions: Tensor
    anchors: Tensor
    input_tokens: Tensor
    labels: Tensor
    target_rows: Tensor
    hidden: Tensor
    keys: Tensor
    grid_index: Tensor
    num_keys: Tensor


def make_batch(rows: TapRows, conversations: Sequence[int], *, steps: int, draft_index: Tensor) -> Eagle3Batch:
    """draft_index: [V + 1] int64, from `workers.training.data.draft_indices`."""
    device = rows.taps.device
    lengths = [rows.starts[c + 1] - rows.starts[c] for c in conversations]
    prompts = [rows.prompt_lengths[c] for c in conversations]
    answers = [length - prompt + 1 for length, prompt in zip(lengths, prompts, strict=True)]  # N
    selected = torch.cat([torch.arange(rows.starts[c], rows.starts[c + 1]) for c in conversations]).to(device)
    keys = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    num_keys = torch.zeros(len(lengths), max(answers) - 1, dtype=torch.int64)
    anchors, grid_index, input_tokens, labels, target_rows, hidden = [], [], [], [], [], []
    first, num_hidden = 0, 0
    for index, (c, length, prompt, answer) in enumerate(zip(conversations, lengths, prompts, answers, strict=True)):
        keys[index, :length] = torch.arange(first, first + length)
        num_keys[index, : answer - 1] = torch.arange(prompt, length)
        anchors.append(torch.arange(first + prompt - 1, first + length - 1))
        grid_index.append(index * num_keys.shape[1] + torch.arange(answer - 1))
        completion = rows.tokens[rows.starts[c] + prompt - 1 : rows.starts[c + 1]]  # c[0 .. N - 1]
        token_index = torch.arange(answer - 1)[:, None] + torch.arange(steps + 1)  # [N - 1, S + 1]: [j, s] is j + s
        padded = torch.cat([completion, completion.new_full((steps + 1,), IGNORED)])[token_index.to(device)]
        input_tokens.append(padded[:, :-1].clamp(min=0))
        labels.append(draft_index[padded[:, 1:]])
        target_rows.append(num_hidden + token_index[:, 1:].clamp(max=answer - 1))
        hidden.append(rows.hidden[rows.answer_starts[c] : rows.answer_starts[c + 1]])
        first, num_hidden = first + length, num_hidden + answer
    return Eagle3Batch(
        taps=rows.taps[selected].float(),
        tokens=rows.tokens[selected],
        positions=rows.positions[selected],
        anchors=torch.cat(anchors).to(device),
        input_tokens=torch.cat(input_tokens),
        labels=torch.cat(labels),
        target_rows=torch.cat(target_rows).to(device),
        hidden=torch.cat(hidden).float(),
        keys=keys.to(device),
        grid_index=torch.cat(grid_index).to(device),
        num_keys=num_keys.to(device),
    )
