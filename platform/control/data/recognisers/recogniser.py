"""What a recogniser is: a pattern of RE2, and a check of the texts that match it.

RE2 matches in a time that is linear in the length of the text, and a check takes a time that is linear in what it
accepts. A hostile text can therefore not occupy a process for long. Texts are UTF-8, so that they are encoded only once
for all recognisers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import re2

Span = tuple[int, int]  # the bytes at which a found text begins and ends
# Called with a match of re2. Returns the span of the text that the recogniser accepts, which begins within the match.
# Returns None if it accepts nothing; the search then continues after the match. It may also return an empty span, so
# that the search continues at the position of this span.
Check = Callable[[Any], Span | None]


class InvalidPattern(ValueError):
    """A pattern cannot be used. The message quotes the pattern and says why."""


def whole(match: Any) -> Span:
    """Accepts every match."""
    span: Span = match.span()
    return span


@dataclass(frozen=True, slots=True)
class Recogniser:
    """Finds the texts that match `pattern` and that `check` accepts."""

    pattern: str
    check: Check = whole
    compiled: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises: InvalidPattern."""
        object.__setattr__(self, "compiled", compiled(self.pattern))

    def find(self, text: bytes) -> Iterator[Span]:
        """Yields the found texts, in their order and without overlaps."""
        position = 0
        while (match := self.compiled.search(text, position)) is not None:
            span = self.check(match)
            if span is not None and span[0] < span[1]:
                yield span
            end = match.end() if span is None else span[1]
            position = max(end, position + 1)  # an empty match ends where it begins

    def replaced(self, text: bytes, replacement: bytes) -> bytes:
        """Returns the text with this replacement in place of each found text."""
        pieces: list[bytes] = []
        copied = 0  # the text before this position is already in `pieces`
        for begin, end in self.find(text):
            pieces += (text[copied:begin], replacement)
            copied = end
        return b"".join((*pieces, text[copied:]))


def compiled(pattern: str) -> Any:
    """Compiles a pattern, which may be a customer's. Raises: InvalidPattern."""
    options = re2.Options()
    options.log_errors = False
    try:
        made = re2.compile(pattern.encode(), options)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise InvalidPattern(f"The pattern {pattern[:80]!r} is not a pattern of RE2: {reason}.") from error
    if made.search(b"") is not None:
        raise InvalidPattern(f"The pattern {pattern[:80]!r} matches an empty text.")
    return made
