"""Batches of whole conversations: as tokens for the adapted model, and where in them the answers were chosen.

Row j of an answer is position P - 1 + j, whose hidden state chooses c[j]; the last one's label is the answer's last
token, so an answer that was cut by the length limit teaches no end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.data import Conversation


@dataclass(frozen=True, slots=True)
class TurboLoraBatch:
    """B conversations.

    tokens: [B, L] int64, all but each conversation's last; 0 past its end.
    places: [A] int64. Where in the flattened [B L] the answers' tokens are chosen, answer after answer.
    completions: [A] int64. Those tokens.
    starts: [B + 1]. First row of each answer, and A.
    """

    tokens: Tensor
    places: Tensor
    completions: Tensor
    starts: tuple[int, ...]


def make_batch(conversations: Sequence[Conversation], device: torch.device) -> TurboLoraBatch:
    longest = max(c.num_tokens for c in conversations) - 1
    tokens = torch.zeros(len(conversations), longest, dtype=torch.int64)
    places, starts = [], [0]
    for index, c in enumerate(conversations):
        read = (*c.prompt_token_ids, *c.completion_token_ids)[:-1]
        tokens[index, : len(read)] = torch.tensor(read)
        places.append(index * longest + torch.arange(len(c.prompt_token_ids) - 1, len(read)))
        starts.append(starts[-1] + len(c.completion_token_ids))
    completions = torch.tensor([token for c in conversations for token in c.completion_token_ids])
    return TurboLoraBatch(tokens.to(device), torch.cat(places).to(device), completions.to(device), tuple(starts))
