"""Training rows of Medusa heads: a hidden state, and the tokens after the one that it chose."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.data import IGNORED, depth_labels
from workers.training.hidden_states import HiddenRows


@dataclass(frozen=True, slots=True)
class MedusaRows:
    """R rows; rows without any label are left out.

    index: [R] int64. Each row's place in `HiddenRows.hidden`.
    labels: [R, K] int64. Place in the draft vocabulary of the token that head k should guess; `IGNORED` past the end
        of the answer and for tokens that are not in the draft vocabulary, which no head can propose.
    """

    index: Tensor
    labels: Tensor


def medusa_rows(rows: HiddenRows, *, num_heads: int, draft_vocab: Tensor, vocab_size: int) -> MedusaRows:
    """draft_vocab: [Vd] int64 token ids."""
    device = rows.hidden.device
    place = torch.full((vocab_size + 1,), IGNORED, dtype=torch.int64, device=device)  # the last entry is for IGNORED
    place[draft_vocab.to(device)] = torch.arange(draft_vocab.shape[0], device=device)
    tokens = torch.cat(
        [
            depth_labels(rows.completions[start:end], num_depths=num_heads)
            for start, end in zip(rows.starts, rows.starts[1:], strict=False)
        ]
    )  # [R, K]
    labels = place[tokens]
    index = (labels != IGNORED).any(dim=1).nonzero().flatten()
    return MedusaRows(index=index, labels=labels[index])


def shifted_index(index: Tensor, *, num_heads: int, num_rows: int) -> Tensor:
    """Returns [R, K]: the row that chose the token that head k guesses. It is meaningful only with a label."""
    offsets = torch.arange(1, num_heads + 1, device=index.device)
    return (index[:, None] + offsets).clamp_(max=num_rows - 1)
