"""Replaces personal data in the texts of a request before the request is stored.

RE2 matches the patterns in a time that is linear in the length of the text, so no customer's pattern can occupy the
gateway for long.
"""

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2
from stdnum import luhn

REPLACEMENT = "[redacted]"
MAX_PATTERNS = 20
MAX_PATTERN_LENGTH = 500
# The most instructions that all patterns of a capture may have after RE2 has compiled them. The slowest patterns need
# about 2 us per instruction and 1,024 characters, so a request of 256 KiB takes a fifth of a second at most.
MAX_PROGRAM_SIZE = 400
_NOT_TEXT = frozenset({"role", "type"})  # members whose values are keywords of the API

_Accept = Callable[[Any], bool]  # the argument is a match of re2


class InvalidPattern(ValueError):
    """A pattern cannot be used. The message quotes the pattern and says why."""


def _always(_: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Recogniser:
    """Texts that match the pattern and that `accept` accepts are personal data."""

    pattern: str
    accept: _Accept = _always


def _is_address(match: Any) -> bool:
    """Whether the match is an IP address. Part of a word, as in `std::vector`, is none, nor is the operator `::`."""
    before, after = match.string[max(0, match.start() - 1) : match.start()], match.string[match.end() : match.end() + 1]
    if before.isalnum() or after.isalnum() or match[0] == "::":
        return False
    try:
        ipaddress.ip_address(match[0])
    except ValueError:
        return False
    return True


def _is_card_number(match: Any) -> bool:
    digits = "".join(filter(str.isdigit, match[0]))
    return 13 <= len(digits) <= 19 and luhn.is_valid(digits)


_RECOGNISERS: Mapping[str, Sequence[_Recogniser]] = {
    "email": [_Recogniser(r"(?i)[a-z0-9._%+\-]+@[a-z0-9\-]+(?:\.[a-z0-9\-]+)+")],
    "ip_address": [
        _Recogniser(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", _is_address),
        _Recogniser(r"[0-9A-Fa-f]*:[0-9A-Fa-f.:]*[0-9A-Fa-f:]", _is_address),
    ],
    "credit_card": [
        _Recogniser(r"\b\d{4}[ \-]?\d{4}[ \-]?\d{4}[ \-]?\d{1,7}\b", _is_card_number),
        _Recogniser(r"\b3[47]\d{2}[ \-]?\d{6}[ \-]?\d{5}\b", _is_card_number),
    ],
}
KINDS = tuple(_RECOGNISERS)


class Redaction:
    """Replaces the texts that are found by the recognisers of some kinds and by the customer's patterns."""

    def __init__(self, kinds: Sequence[str], patterns: Sequence[str]) -> None:
        """Raises: InvalidPattern."""
        own = [(_compiled(pattern), _always) for pattern in patterns]
        if sum(compiled.programsize for compiled, _ in own) > MAX_PROGRAM_SIZE:
            raise InvalidPattern("The patterns are too complex; fewer or lower numbers of repetitions are simpler.")
        named = [recogniser for kind in kinds for recogniser in _RECOGNISERS[kind]]
        self._rules = [*((_compiled(one.pattern), one.accept) for one in named), *own]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def apply(self, value: Any) -> Any:
        """Returns a JSON value with replacements in all its strings, except in the names of members."""
        if isinstance(value, str):
            return self._redacted(value)
        if isinstance(value, list):
            return [self.apply(item) for item in value]
        if isinstance(value, dict):
            return {name: item if name in _NOT_TEXT else self.apply(item) for name, item in value.items()}
        return value

    def _redacted(self, text: str) -> str:
        for rule, accept in self._rules:
            text = rule.sub(lambda match, accept=accept: REPLACEMENT if accept(match) else match[0], text)
        return text


@lru_cache(maxsize=256)
def redaction_of(kinds: tuple[str, ...], patterns: tuple[str, ...]) -> Redaction:
    """Returns the redaction for these kinds and patterns, from a cache. Raises: InvalidPattern."""
    return Redaction(kinds, patterns)


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise InvalidPattern(f"The pattern {pattern[:80]!r} is not a pattern of RE2: {reason}.") from error
    if compiled.search("") is not None:
        raise InvalidPattern(f"The pattern {pattern[:80]!r} matches an empty text.")
    return compiled


def has_token_ids(body: Mapping[str, Any]) -> bool:
    """Whether the prompt of a completion is a list of token ids, or of such lists."""
    prompt = body.get("prompt")
    return isinstance(prompt, list) and not all(isinstance(item, str) for item in prompt)
