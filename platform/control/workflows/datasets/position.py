"""Finds the position of a field in a line of JSON, so that an editor can jump to it."""

import json
import re
from collections.abc import Iterator

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")
# A step of a path: a key of an object, or an index of a list in brackets.
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def byte_column(line: bytes, param: str | None) -> int:
    """Returns the byte, counted from 1, at which the value of the field begins.

    If the field is missing, returns the byte at which the object that should contain it begins.

    Args:
        line: valid JSON.
        param: a path such as `body.messages[1].role`; None: the whole line.
    """
    text = line.decode()
    at = _skip(text, 0)
    for name, index in _STEP.findall(param or ""):
        value_at = next((begin for key, begin in _members(text, at) if key == (int(index) if index else name)), None)
        if value_at is None:
            break
        at = value_at
    return len(text[:at].encode()) + 1  # `at` counts characters


def _members(text: str, at: int) -> Iterator[tuple[str | int, int]]:
    """Yields each key (or index) of the object (or list) that begins at `at`, and where the value of the key begins."""
    opening, at = text[at], _skip(text, at + 1)
    if opening not in "{[":
        return
    position = 0
    while text[at] not in "}]":
        key: str | int = position
        if opening == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # skip the colon
        yield key, at
        _, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        position += 1


def _skip(text: str, at: int) -> int:
    """Returns the position of the first character, from `at` on, that is not whitespace."""
    blank = _BLANK.match(text, at)
    assert blank is not None, "the pattern also matches the empty string"
    return blank.end()
