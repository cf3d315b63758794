"""Batches of whole conversations: the inputs of the adapted layers, and the answer tokens that the adapter learns.

A conversation is a prompt of P tokens and an answer c[0 .. N - 1]. Row j of the answer is position P - 1 + j. Its label
is c[j], which is sampled from the final hidden state at this position. No row has a label after c[N - 1], so the model
does not learn to end an answer at the point where the length limit has cut it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.hidden_states import TapRows


@dataclass(frozen=True, slots=True)
class TurboLoraBatch:
    """B conversations with A answer rows in total. The longest has L input positions. H is the target's hidden size.

    layer_inputs: [B, L, H] float32. The input of the first adapted layer at each position; padded with 0.
    flat_index: [A] int64. Indices of the answer rows in `layer_inputs.flatten(0, 1)`, answer after answer.
    completions: [A] int64. The answers' tokens.
    starts: [B + 1]. The first of the A rows of each answer, and A as the last entry.
    """

    layer_inputs: Tensor
    flat_index: Tensor
    completions: Tensor
    starts: tuple[int, ...]


def make_batch(rows: TapRows, conversations: Sequence[int]) -> TurboLoraBatch:
    """rows: must have one tap, the input of the first adapted layer."""
    lengths = [rows.starts[c + 1] - rows.starts[c] for c in conversations]
    layer_inputs = torch.zeros(len(lengths), max(lengths), rows.taps.shape[-1], device=rows.taps.device)
    flat_index, completions, starts = [], [], [0]
    for index, (c, length) in enumerate(zip(conversations, lengths, strict=True)):
        start, first_answer_row = rows.starts[c], rows.prompt_lengths[c] - 1
        layer_inputs[index, :length] = rows.taps[start : start + length, 0].float()
        flat_index.append(
            index * layer_inputs.shape[1] + torch.arange(first_answer_row, length, device=layer_inputs.device)
        )
        completions.append(rows.tokens[start + first_answer_row : start + length])
        starts.append(starts[-1] + length - first_answer_row)
    return TurboLoraBatch(layer_inputs, torch.cat(flat_index), torch.cat(completions), tuple(starts))
