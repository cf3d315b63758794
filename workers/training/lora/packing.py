"""Lays rows out as a batch of sequences. A sequence has one row or, with packing, several rows one after another.

The rows of a sequence do not attend to each other, because the positions of each row start at 0: `transformers` derives
the attention mask from the positions. The loss is a sum over the same labels in both layouts, so packing only saves the
computation of padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.lora.rows import LabelledRow


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """B sequences of L tokens, with A labels in total.

    tokens: [B, L] int64, padded at the end with 0.
    positions: [B, L] int64. Position within the row; padding counts as one more row.
    predicting: [A] int64. Indices in `tokens.flatten()` of the tokens whose next token is a label.
    labels: [A] int64. The answers' tokens.
    """

    tokens: Tensor
    positions: Tensor
    predicting: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "LabelledBatch":
        return LabelledBatch(*(getattr(self, name).to(device) for name in self.__slots__))


def make_batch(rows: Sequence[LabelledRow], *, packing: bool) -> LabelledBatch:
    sequences = packed(rows) if packing else [[row] for row in rows]
    length = max(sum(len(row.tokens) for row in sequence) for sequence in sequences)
    tokens = torch.zeros(len(sequences), length, dtype=torch.int64)
    positions = torch.zeros(len(sequences), length, dtype=torch.int64)
    predicting, labels = [], []
    for index, sequence in enumerate(sequences):
        start = 0
        for row in sequence:
            end = start + len(row.tokens)
            tokens[index, start:end] = torch.tensor(row.tokens)
            positions[index, start:end] = torch.arange(end - start)
            first = index * length + start + row.num_prompt - 1
            predicting.append(torch.arange(first, first + row.num_labels))
            labels.append(torch.tensor(row.tokens[row.num_prompt :]))
            start = end
        positions[index, start:] = torch.arange(length - start)
    return LabelledBatch(tokens, positions, torch.cat(predicting), torch.cat(labels))


def packed(rows: Sequence[LabelledRow]) -> list[list[LabelledRow]]:
    """Distributes rows over sequences that are at most as long as the longest row.

    Each row, from the longest to the shortest, goes into the first sequence that has room for it.
    """
    longest = max(len(row.tokens) for row in rows)
    sequences: list[list[LabelledRow]] = []
    room: list[int] = []
    for row in sorted(rows, key=lambda row: -len(row.tokens)):
        index = next((i for i, left in enumerate(room) if left >= len(row.tokens)), None)
        if index is None:
            index = len(sequences)
            sequences.append([])
            room.append(longest)
        sequences[index].append(row)
        room[index] -= len(row.tokens)
    return sequences
