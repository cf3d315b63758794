"""Training rows of Medusa heads. A row has a hidden state of the target, and a label for each head.

If answer token c[j] was sampled from the hidden state, then head k (counted from 0) predicts c[j + 1 + k].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.data import IGNORED, depth_labels, draft_indices
from workers.training.hidden_states import HiddenRows


@dataclass(frozen=True, slots=True)
class MedusaRows:
    """The R hidden states that have a label for at least one of the K heads.

    index: [R] int64. Each row's index in `HiddenRows.hidden`.
    labels: [R, K] int64. Index in the draft vocabulary of the token that each head predicts; `IGNORED` past the end of
        the answer and for tokens that are not in the draft vocabulary.
    """

    index: Tensor
    labels: Tensor


def medusa_rows(rows: HiddenRows, *, num_heads: int, draft_vocab: Tensor, vocab_size: int) -> MedusaRows:
    """Returns the training rows of all answers. draft_vocab: [Vd] int64 token ids."""
    answers = [rows.completions[start:end] for start, end in zip(rows.starts, rows.starts[1:], strict=False)]
    tokens = torch.cat([depth_labels(answer, num_depths=num_heads) for answer in answers])
    labels = draft_indices(draft_vocab.to(rows.hidden.device), vocab_size)[tokens]
    index = (labels != IGNORED).any(dim=1).nonzero().flatten()
    return MedusaRows(index=index, labels=labels[index])


def shifted_index(index: Tensor, *, num_heads: int, num_rows: int) -> Tensor:
    """Returns [R, K]: for each label, the row of `HiddenRows.hidden` from which the target sampled the token.

    A value has no meaning where the label is `IGNORED`. num_rows: number of rows of `HiddenRows.hidden`.
    """
    offsets = torch.arange(1, num_heads + 1, device=index.device)
    return (index[:, None] + offsets).clamp_(max=num_rows - 1)
