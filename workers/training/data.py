"""Reads the training data: prompts and the target's answers, as the token ids that the target read and sampled.

A conversation is a prompt of P tokens and an answer of N tokens c[0..N-1]. The target sampled c[j] from its final
hidden state h[j] at absolute position P - 1 + j (0 <= j < N). A drafter that reads h[j] also knows c[j], and drafts
c[j + 1], c[j + 2], ... Row j of a conversation therefore has the label c[j + 1 + depth] at each depth. The tokens of a
prompt are never labels. An answer that was cut by the length limit has no end-of-sequence token, so its end is not
learned. Such answers are counted or, with `drop_cut_answers`, left out.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from workers.failures import InvalidInputError

IGNORED = -1  # the label of positions without a loss; `draft_indices` relies on -1 as an index of the last entry
MIN_VALIDATION_CONVERSATIONS = 4
MIN_CONVERSATIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    custom_id: str
    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    cut_by_length: bool
    cut_in_trace: bool = False  # whether the limit fell into the reasoning trace

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise InvalidInputError("invalid_training_row", f"{self.custom_id}: prompt_token_ids must not be empty")

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.completion_token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Conversations in file order. They are split by a hash of their custom_id, so a resumed run has the same split."""

    train: tuple[Conversation, ...]
    validation: tuple[Conversation, ...]
    sha256: str  # over the files' bytes, in the given order
    num_skipped: int  # conversations with fewer than two answer tokens, in which there is nothing to draft
    num_dropped: int = 0  # conversations left out because the length limit ended the answer

    @property
    def num_cut_by_length(self) -> int:
        return sum(c.cut_by_length for c in (*self.train, *self.validation))

    @property
    def num_cut_in_trace(self) -> int:
        return sum(c.cut_in_trace for c in (*self.train, *self.validation))


def read_corpus(paths: Sequence[Path], *, validation_fraction: float, drop_cut_answers: bool = False) -> Corpus:
    """Reads conversations from the files, and splits them into training and validation.

    Args:
        drop_cut_answers: whether to leave out answers that the length limit ended.

    Raises: InvalidInputError: a line is not a training row, or there are too few conversations.
    """
    digest = hashlib.sha256()
    conversations: list[Conversation] = []
    for path in paths:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                digest.update(line)
                if line.strip():
                    conversations.append(_parse(line, where=f"{path.name}:{number}"))
    long_enough = [c for c in conversations if len(c.completion_token_ids) >= 2]
    usable = [c for c in long_enough if not (drop_cut_answers and c.cut_by_length)]
    num_dropped = len(long_enough) - len(usable)
    if len(usable) < MIN_CONVERSATIONS:
        message = f"training needs at least {MIN_CONVERSATIONS} answers of two tokens or more, got {len(usable)}"
        if num_dropped:
            message += f", because on_truncation drops {num_dropped} that the length limit ended"
        raise InvalidInputError("too_few_conversations", message)
    train, validation = split_by_hash(usable, fraction=validation_fraction)
    return Corpus(
        train=train,
        validation=validation,
        sha256=digest.hexdigest(),
        num_skipped=len(conversations) - len(long_enough),
        num_dropped=num_dropped,
    )


def split_by_hash(
    conversations: Sequence[Conversation], *, fraction: float
) -> tuple[tuple[Conversation, ...], tuple[Conversation, ...]]:
    """Returns the conversations for training and those for validation, both in the order of the file.

    Validation gets the conversations whose ids have the smallest hashes. Equal ids are never split.
    """
    hashes = sorted({split_key(c.custom_id) for c in conversations})
    size = max(MIN_VALIDATION_CONVERSATIONS, math.ceil(len(hashes) * fraction))
    if size >= len(hashes):
        raise InvalidInputError(
            "too_few_conversations",
            f"validation needs {size} conversations, which leaves none of {len(hashes)} for training",
        )
    held_out = set(hashes[:size])
    train = tuple(c for c in conversations if split_key(c.custom_id) not in held_out)
    validation = tuple(c for c in conversations if split_key(c.custom_id) in held_out)
    return train, validation


def split_key(custom_id: str) -> str:
    """Returns the hash by which conversations are split."""
    return hashlib.sha256(custom_id.encode()).hexdigest()


def _parse(line: bytes, *, where: str) -> Conversation:
    try:
        row = json.loads(line)
        cut_by_length, cut = row["finish_reason"] == "length", row.get("cut") or {}
        return Conversation(
            custom_id=str(row["custom_id"]),
            prompt_token_ids=tuple(map(int, row["prompt_token_ids"])),
            completion_token_ids=tuple(map(int, row["completion_token_ids"])),
            cut_by_length=cut_by_length,
            cut_in_trace=cut_by_length and cut.get("within") == "trace",
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError(
            "invalid_training_row",
            f"{where}: need custom_id, prompt_token_ids, completion_token_ids and finish_reason, got {error!r}",
        ) from error


def depth_labels(completion: Tensor, *, num_depths: int) -> Tensor:
    """Returns the labels of every row of one conversation.

    Args:
        completion: [N] int64, the answer's token ids.

    Returns:
        [N, num_depths] int64; [j, d] is c[j + 1 + d], or `IGNORED` past the end of the answer.
    """
    num_tokens = completion.shape[0]
    padded = torch.cat([completion, completion.new_full((num_depths,), IGNORED)])
    positions = torch.arange(num_tokens, device=completion.device)
    depths = torch.arange(num_depths, device=completion.device)
    return padded[positions[:, None] + 1 + depths]


def token_counts(texts: Iterable[Sequence[int]], *, vocab_size: int) -> Tensor:
    """Returns [V] int64: how often each token occurs in the texts, for example the answers."""
    return torch.bincount(torch.tensor([*chain.from_iterable(texts)], dtype=torch.int64), minlength=vocab_size)


def most_frequent_tokens(
    counts: Tensor, *, size: int, always: Sequence[int] = (), fill: Sequence[Tensor] = ()
) -> Tensor:
    """Returns the draft vocabulary: the `size` most frequent tokens. Among equally frequent tokens, small ids win.

    Args:
        counts: [V] int64.
        size: the maximum number of tokens.
        always: end-of-sequence tokens, which are included even if their count is 0.
        fill: further scores, [V] each. The first score ranks tokens of equal count, the second score ranks tokens of
            equal count and equal first score, and so on.

    Returns:
        [Vd] int64, ascending. Vd can be less than `size`, because tokens without a positive score are omitted.

    Source: FR-Spec's frequency-ranked vocabulary, with the tie rule of the `speculators` package.
    """
    ranked = counts.clone()
    ranked[torch.tensor(sorted(always), dtype=torch.int64)] = counts.max() + 1
    order = torch.arange(len(counts), device=counts.device)
    for scores in (*reversed(fill), ranked):  # stable sorts: the last one, by count, has the highest priority
        order = order[torch.argsort(scores[order], descending=True, stable=True)]
    scored = torch.stack([ranked > 0, *(scores > 0 for scores in fill)]).any(0)
    return order[scored[order]][:size].sort().values


def draft_indices(draft_vocab: Tensor, vocab_size: int) -> Tensor:
    """Returns [V + 1] int64: each token's index in `draft_vocab` [Vd] int64; `IGNORED` for tokens that are not in it.

    The last entry is also `IGNORED`. It is selected by a label that is itself `IGNORED`, which is -1.
    """
    indices = torch.full((vocab_size + 1,), IGNORED, dtype=torch.int64, device=draft_vocab.device)
    indices[draft_vocab] = torch.arange(draft_vocab.shape[0], device=draft_vocab.device)
    return indices
