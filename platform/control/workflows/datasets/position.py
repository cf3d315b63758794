"""Finds the position of a field in a line of JSON, so that an editor can jump to it."""

import json
import re
from collections.abc import Iterator

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def byte_column(line: bytes, param: str | None) -> int:
    """The position in bytes, from 1, of the field's value; if the field is missing, of the object that should have it.

    Args:
        line: valid JSON.
        param: a path such as `body.messages[1].role`; None: the whole line.
    """
    text = line.decode()
    at = _skip(text, 0)
    for name, index in _STEP.findall(param or ""):
        found = next((begin for key, begin in _members(text, at) if key == (int(index) if index else name)), None)
        if found is None:
            break
        at = found
    return len(text[:at].encode()) + 1


def _members(text: str, at: int) -> Iterator[tuple[str | int, int]]:
    """Yields each key of the object (or index of the list) at `at`, and the position at which its value begins."""
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
    blank = _BLANK.match(text, at)
    assert blank is not None, "the pattern also matches the empty string"
    return blank.end()
