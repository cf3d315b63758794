"""Splits the text of an answer into parts that come from accepted draft tokens and parts that the model sampled itself.

The joined texts of the parts are the text. A character belongs to the token that completes it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.text import TextStream


@dataclass(frozen=True, slots=True)
class Part:
    text: str
    accepted: bool  # whether the tokens of the text are accepted draft tokens


class PartStream:
    """Call `split` once after each `push` of the text stream, which must have `per_token`."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._num_tokens = 0
        self._num_characters = 0  # of the text that was split before
        # The first character of each token whose text has not been split completely, and whether it is accepted.
        self._tokens: deque[tuple[int, bool]] = deque()

    def split(self, text: str, accepted: Sequence[bool]) -> tuple[Part, ...]:
        """Args: text: what the stream returned. accepted: whether each of the new tokens is an accepted draft token."""
        starts = self._stream.token_starts[self._num_tokens :]
        self._num_tokens += len(starts)
        self._tokens += zip(starts, accepted, strict=False)  # a stop string ends the stream before its last tokens
        position, end = self._num_characters, self._num_characters + len(text)
        parts: list[Part] = []
        while position < end:
            while len(self._tokens) > 1 and self._tokens[1][0] <= position:
                self._tokens.popleft()
            until = min(self._tokens[1][0], end) if len(self._tokens) > 1 else end
            of_token = text[position - self._num_characters : until - self._num_characters]
            _add(parts, Part(of_token, self._tokens[0][1]))
            position = until
        self._num_characters = end
        return tuple(parts)


def _add(parts: list[Part], part: Part) -> None:
    """Adds a part. Neighbouring parts of the same kind become one."""
    if parts and parts[-1].accepted == part.accepted:
        part = Part(parts.pop().text + part.text, part.accepted)
    parts.append(part)
