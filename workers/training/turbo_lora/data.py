"""Batches of whole conversations: the inputs of the adapted layers, and the positions that chose the answers.

Row j of an answer is position P - 1 + j, whose hidden state chooses c[j]; the last one's label is the answer's last
token, so nothing is learned about the end of an answer that was cut by the length limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.hidden_states import TapRows


@dataclass(frozen=True, slots=True)
class TurboLoraBatch:
    """B conversations.

    entering: [B, L, H] float32, the residual stream at all positions but each conversation's last; 0 past its end.
    places: [A] int64. Where in the flattened [B L] the answers' tokens are chosen, answer after answer.
    completions: [A] int64. Those tokens.
    starts: [B + 1]. First row of each answer, and A.
    """

    entering: Tensor
    places: Tensor
    completions: Tensor
    starts: tuple[int, ...]


def make_batch(rows: TapRows, conversations: Sequence[int]) -> TurboLoraBatch:
    """rows: with one tap."""
    lengths = [rows.starts[c + 1] - rows.starts[c] for c in conversations]
    entering = torch.zeros(len(lengths), max(lengths), rows.taps.shape[-1], device=rows.taps.device)
    places, completions, starts = [], [], [0]
    for index, (c, length) in enumerate(zip(conversations, lengths, strict=True)):
        start, chosen = rows.starts[c], rows.prompt_lengths[c] - 1
        entering[index, :length] = rows.taps[start : start + length, 0].float()
        places.append(index * entering.shape[1] + torch.arange(chosen, length, device=entering.device))
        completions.append(rows.tokens[start + chosen : start + length])
        starts.append(starts[-1] + length - chosen)
    return TurboLoraBatch(entering, torch.cat(places), torch.cat(completions), tuple(starts))
