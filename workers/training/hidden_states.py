"""Computes the target's hidden states for all conversations once, before training, and keeps them in memory or a file.

Training needs the same hidden states in every epoch, and running the target takes far longer than a training step. A
hidden state has H elements of the model's dtype (1,152 bytes for SmolLM2-135M), so a thousand answers of 150 tokens
take 170 MB.

A tap is an intermediate hidden state: the residual stream at the input of one of the target's layers. A conversation
has a prompt of P tokens and an answer c[0 .. N - 1]. Shape letters: R rows, A rows of answers only, C conversations,
T taps, H hidden size.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.models.base import Hidden, Model
from workers.training.data import Conversation
from workers.training.kept_states import KeptStates
from workers.training.processes import ALONE, Processes


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """The final hidden states from which the answers of C conversations were sampled, one row per answer token.

    hidden: [R, H] in the model's dtype; token c[j] of conversation i was sampled from row `starts[i] + j`.
    completions: [R] int64. The sampled tokens c[j].
    starts: [C + 1]. First row of each conversation, and R as the last entry.
    prompts: [C]. The prompt of each conversation; may be empty if acceptance is not simulated.
    """

    hidden: Tensor
    completions: Tensor
    starts: tuple[int, ...]
    prompts: tuple[tuple[int, ...], ...] = ()

    @property
    def num_bytes(self) -> int:
        return self.hidden.numel() * self.hidden.element_size()


def rows_bytes(conversations: Sequence[Conversation], *, hidden_size: int, dtype: torch.dtype) -> int:
    return sum(len(c.completion_token_ids) for c in conversations) * hidden_size * dtype.itemsize


def compute_hidden_rows(
    decoder: Model,
    conversations: Sequence[Conversation],
    *,
    file: Path | None,
    on_done: Callable[[int], None] = lambda _: None,
    kept: KeptStates | None = None,
    processes: Processes = ALONE,
) -> HiddenRows:
    """Runs the target over each conversation.

    Args:
        file: stores the rows, and is mapped into memory. None: the rows are stored in memory only.
        on_done: called after each conversation with the number of conversations processed so far.
        kept: stores the hidden states of earlier runs, which are not computed again, and of this run.
        processes: each process runs the target over some of the conversations, and receives the rows of the others.
    """
    lengths = [len(c.completion_token_ids) for c in conversations]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    hidden = _empty_rows((starts[-1], decoder.config.hidden_size), decoder, file)
    for index, conversation in enumerate(conversations):
        if processes.is_mine(index):
            tokens = (*conversation.prompt_token_ids, *conversation.completion_token_ids[:-1])
            states = _states(decoder, tokens, (), kept).final  # [P + N - 1, H]
            hidden[starts[index] : starts[index + 1]] = states[len(conversation.prompt_token_ids) - 1 :]
        on_done(index + 1)
    processes.exchange(_parts(hidden, starts))
    completions = torch.tensor([t for c in conversations for t in c.completion_token_ids], dtype=torch.int64)
    return HiddenRows(
        hidden=hidden,
        completions=completions.to(hidden.device),
        starts=tuple(starts),
        prompts=tuple(c.prompt_token_ids for c in conversations),
    )


@dataclass(frozen=True, slots=True)
class TapRows:
    """The taps at all positions of C conversations, and the final hidden states from which answers were sampled.

    A conversation of P + N tokens has P + N - 1 positions, because the last token is not an input.

    taps: [R, T, H] in the model's dtype. If no tap layers were requested, T is 1 and the tap is the final hidden state.
    tokens: [R] int64. The token after each position; the last N of a conversation are its answer.
    positions: [R] int64, from 0 in each conversation.
    starts: [C + 1]. First row of each conversation, and R as the last entry.
    first_tokens: [C]. The token at position 0 of each conversation.
    prompt_lengths: [C]. P of each conversation.
    hidden: [A, H] in the model's dtype; token c[j] of conversation i was sampled from row `answer_starts[i] + j`.
    answer_starts: [C + 1]. First row of `hidden` of each conversation, and A as the last entry.
    """

    taps: Tensor
    tokens: Tensor
    positions: Tensor
    starts: tuple[int, ...]
    first_tokens: tuple[int, ...]
    prompt_lengths: tuple[int, ...]
    hidden: Tensor
    answer_starts: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.taps, self.hidden))


def compute_tap_rows(
    decoder: Model,
    conversations: Sequence[Conversation],
    *,
    tap_layers: Sequence[int],
    file: Path | None,
    on_done: Callable[[int], None] = lambda _: None,
    kept: KeptStates | None = None,
    processes: Processes = ALONE,
) -> TapRows:
    """Works like `compute_hidden_rows`, and also computes taps. Only the taps, which need most memory, are in `file`.

    tap_layers: numbers as in `Model.hidden_states`; may be empty, see `TapRows.taps`.
    """
    lengths = [c.num_tokens - 1 for c in conversations]
    starts = (0, *itertools.accumulate(lengths))
    answer_starts = (0, *itertools.accumulate(len(c.completion_token_ids) for c in conversations))
    shape = (starts[-1], max(1, len(tap_layers)), decoder.config.hidden_size)
    taps = _empty_rows(shape, decoder, file)
    hidden = _empty_rows((answer_starts[-1], decoder.config.hidden_size), decoder, None)
    following: list[int] = []
    for index, conversation in enumerate(conversations):
        tokens = (*conversation.prompt_token_ids, *conversation.completion_token_ids)
        if processes.is_mine(index):
            states = _states(decoder, tokens[:-1], tap_layers, kept)
            taps[starts[index] : starts[index + 1]] = states.final.unsqueeze(1) if states.taps is None else states.taps
            answer = states.final[len(conversation.prompt_token_ids) - 1 :]
            hidden[answer_starts[index] : answer_starts[index + 1]] = answer
        following += tokens[1:]
        on_done(index + 1)
    processes.exchange(_parts(taps, starts))
    processes.exchange(_parts(hidden, answer_starts))
    return TapRows(
        taps=taps,
        tokens=torch.tensor(following, dtype=torch.int64, device=decoder.device),
        positions=torch.cat([torch.arange(length) for length in lengths]).to(decoder.device),
        starts=starts,
        first_tokens=tuple(c.prompt_token_ids[0] for c in conversations),
        prompt_lengths=tuple(len(c.prompt_token_ids) for c in conversations),
        hidden=hidden,
        answer_starts=answer_starts,
    )


def _states(model: Model, token_ids: Sequence[int], tap_layers: Sequence[int], kept: KeptStates | None) -> Hidden:
    if kept is not None:
        return kept.of(model, token_ids, tap_layers)
    return model.hidden_states(torch.tensor(token_ids, dtype=torch.int64, device=model.device), tap_layers)


def _parts(rows: Tensor, starts: Sequence[int]) -> list[Tensor]:
    """Returns the rows of each conversation."""
    return [rows[start:end] for start, end in itertools.pairwise(starts)]


def _empty_rows(shape: tuple[int, ...], decoder: Model, file: Path | None) -> Tensor:
    if file is None:
        return torch.empty(shape, dtype=decoder.dtype, device=decoder.device)
    file.parent.mkdir(parents=True, exist_ok=True)
    flat = torch.from_file(str(file), shared=True, size=math.prod(shape), dtype=decoder.dtype)
    return flat.view(shape)
