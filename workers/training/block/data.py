"""Training data of block drafters: the inputs and labels of the block that is drafted after each anchor.

A conversation is a prompt of P tokens and an answer of N tokens c[0 .. N - 1]. The target's taps (intermediate hidden
states) are known at the positions 0 .. P + N - 2, because the last token is not an input. Anchor j (0 <= j < N - 1) is
the answer's token c[j], at position P + j. Its block reads the taps at all earlier positions. The label at depth d of
the block is c[j + 1 + d], which the target sampled from row j + 1 + d of the answer's hidden states. V is the size of
the target's vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.data import IGNORED
from workers.training.hidden_states import TapRows


@dataclass(frozen=True, slots=True)
class Blocks:
    """The A blocks of one conversation, each of which predicts D tokens.

    taps: [S, T, H] float32. The T taps of size H at positions 0 .. S - 1.
    anchors: [A] int64. Positions of the anchors.
    tokens: [A, D + 1] int64. The anchor and the D tokens after it; 0 past the answer's end.
    labels: [A, D] int64. Index in the draft vocabulary of the token at each depth; `IGNORED` past the answer's end and
        for tokens that are not in the draft vocabulary.
    hidden: [A, D, H] float32. The final hidden states from which the target sampled the labels; meaningless where the
        label is `IGNORED`.
    """

    taps: Tensor
    anchors: Tensor
    tokens: Tensor
    labels: Tensor
    hidden: Tensor


def num_anchors(rows: TapRows, conversation: int) -> int:
    """Returns N - 1, the number of anchors of a conversation."""
    return rows.starts[conversation + 1] - rows.starts[conversation] - rows.prompt_lengths[conversation]


def blocks_of(rows: TapRows, conversation: int, anchors: Tensor, *, depths: int, draft_index: Tensor) -> Blocks:
    """Returns the blocks of the given anchors.

    Args:
        anchors: [A] int64. The numbers j of the anchors.
        draft_index: [V + 1] int64, from `workers.training.data.draft_indices`.
    """
    start, end = rows.starts[conversation], rows.starts[conversation + 1]
    prompt = rows.prompt_lengths[conversation]
    completion = rows.tokens[start + prompt - 1 : end]  # c[0 .. N - 1]
    anchors = anchors.to(completion.device)
    index = anchors.unsqueeze(1) + torch.arange(depths + 1, device=completion.device)  # [A, D + 1], indices of c
    tokens = torch.cat([completion, completion.new_full((depths + 1,), IGNORED)])[index]
    first = rows.answer_starts[conversation]
    target_rows = first + index[:, 1:].clamp(max=completion.shape[0] - 1)  # clamped where the label is IGNORED
    return Blocks(
        taps=rows.taps[start:end].float(),
        anchors=prompt + anchors,
        tokens=tokens.clamp(min=0),
        labels=draft_index[tokens[:, 1:]],
        hidden=rows.hidden[target_rows].float(),
    )
