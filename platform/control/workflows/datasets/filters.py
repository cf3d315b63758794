"""Decides which rows of a dataset pass a filter. `filter_passes` uses it in a child process."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.data.recognisers.recogniser import compiled
from control.workflows.datasets.formats import Example
from control.workflows.prompt_files.lines import Line
from control.workflows.prompt_files.rows import parse_object
from control.workflows.prompt_files.sketches import prompt_key

_POINTS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """A row passes if all conditions hold. None stands for no condition. The API's `FilterInput` has these members."""

    labels: Mapping[str, Sequence[str]] | None = None  # members of the row, and the values that each may have
    has_answer: bool | None = None
    contains: str | None = None
    matches: str | None = None  # a pattern of RE2
    excludes: str | None = None
    min_characters: int | None = None
    max_characters: int | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    share: float | None = None


class RowFilter:
    def __init__(self, conditions: Conditions, *, seed: int, num_tokens: Sequence[int | None]) -> None:
        """Args: num_tokens: number of tokens of each row; empty if there is no condition on tokens.

        Raises: InvalidPattern.
        """
        self._conditions, self._seed, self._num_tokens = conditions, seed, num_tokens
        self._num_seen = 0
        self._matches = None if conditions.matches is None else compiled(conditions.matches)
        self._excludes = None if conditions.excludes is None else compiled(conditions.excludes)

    def passes(self, example: Example, line: Line) -> bool:
        """Returns whether the row passes. Call this once for each row, in order."""
        position, self._num_seen = self._num_seen, self._num_seen + 1
        num_tokens = self._num_tokens[position] if self._num_tokens else None
        wanted = self._conditions
        return (
            (wanted.has_answer is None or wanted.has_answer == (example.answer is not None))
            and (wanted.share is None or point_of(example.body, self._seed) < wanted.share * _POINTS)
            and (not self._num_tokens or _is_within(num_tokens, wanted.min_tokens, wanted.max_tokens))
            and (wanted.labels is None or _has_labels(line, wanted.labels))
            and self._has_text(text_of(example))
        )

    def _has_text(self, text: str) -> bool:
        wanted, encoded = self._conditions, text.encode()
        return (
            _is_within(len(text), wanted.min_characters, wanted.max_characters)
            and (wanted.contains is None or wanted.contains in text)
            and (self._matches is None or self._matches.search(encoded) is not None)
            and (self._excludes is None or self._excludes.search(encoded) is None)
        )


def point_of(body: Mapping[str, Any], seed: int) -> int:
    """Returns a number in [0, 2**64) that depends on the seed and the prompt.

    It is independent of the hash with which `splits` divides a dataset, even if the seed is the same.
    """
    digest = hashlib.blake2b(prompt_key(body), digest_size=8, key=f"sample:{seed}".encode()).digest()
    return int.from_bytes(digest, "little")


def text_of(example: Example) -> str:
    """Returns the texts of messages, prompt and answer, separated by line feeds."""
    texts = [example.prompt]
    for message in example.messages or ():
        content = message.get("content")
        texts += [content] if isinstance(content, str) else [part["text"] for part in content or ()]
    return "\n".join(text for text in (*texts, example.answer) if text)


def _has_labels(line: Line, labels: Mapping[str, Sequence[str]]) -> bool:
    row = parse_object(line.content or b"")
    return all(row.get(member) in values for member, values in labels.items())


def _is_within(value: int | None, low: int | None, high: int | None) -> bool:
    return value is not None and (low is None or value >= low) and (high is None or value <= high)
