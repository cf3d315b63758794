"""Replaces personal data in the texts of a request before the request is stored.

RE2 matches the patterns in a time that is linear in the length of the text, so no customer's pattern can occupy the
gateway for long.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from control.data.recognisers.personal import PERSONAL
from control.data.recognisers.recogniser import InvalidPattern, Recogniser

REPLACEMENT = "[redacted]"
KINDS = ("email", "ip_address", "credit_card")
MAX_PATTERNS = 20
MAX_PATTERN_LENGTH = 500
# The most instructions that all patterns of a capture together may have after RE2 has compiled them. The slowest
# patterns need about 2 us per instruction for 1,024 characters, so a request of 256 KiB takes at most 0.2 s.
MAX_PROGRAM_SIZE = 400
_NOT_TEXT = frozenset({"role", "type"})  # members whose values are keywords of the API


class Redaction:
    """Replaces the texts that are found by the recognisers of some kinds and by the customer's patterns."""

    def __init__(self, kinds: Sequence[str], patterns: Sequence[str]) -> None:
        """Raises: InvalidPattern."""
        own = [Recogniser(pattern) for pattern in patterns]
        if sum(recogniser.compiled.programsize for recogniser in own) > MAX_PROGRAM_SIZE:
            raise InvalidPattern("The patterns are too complex; fewer or lower numbers of repetitions are simpler.")
        self._recognisers = [*(recogniser for kind in kinds for recogniser in PERSONAL[kind]), *own]

    def __bool__(self) -> bool:
        return bool(self._recognisers)

    def apply(self, value: Any) -> Any:
        """Returns a JSON value with replacements in all its strings, except in the names of members."""
        if isinstance(value, str):
            return self._redacted(value.encode()).decode()
        if isinstance(value, list):
            return [self.apply(item) for item in value]
        if isinstance(value, dict):
            return {name: self._of_member(name, item) for name, item in value.items()}
        return value

    def _of_member(self, name: str, item: Any) -> Any:
        """Returns a member's value with replacements. Strings in `role` and `type` are keywords and do not change.

        An object or list with such a name is not a keyword, for example a tool's parameter with the name `type`.
        """
        return item if name in _NOT_TEXT and isinstance(item, str) else self.apply(item)

    def _redacted(self, text: bytes) -> bytes:
        for recogniser in self._recognisers:
            text = recogniser.replaced(text, REPLACEMENT.encode())
        return text


@lru_cache(maxsize=256)
def redaction_of(kinds: tuple[str, ...], patterns: tuple[str, ...]) -> Redaction:
    """Returns the redaction for these kinds and patterns, from a cache. Raises: InvalidPattern."""
    return Redaction(kinds, patterns)


def has_token_ids(body: Mapping[str, Any]) -> bool:
    """Returns whether the prompt of a completion is a list of token ids, or a list of lists of token ids."""
    prompt = body.get("prompt")
    return isinstance(prompt, list) and not all(isinstance(item, str) for item in prompt)
