"""Where in a line of JSON a field stands, so that an editor can go there."""

import json
import re
from collections.abc import Iterator

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def byte_column(line: bytes, param: str | None) -> int:
    """The byte, from 1, at which the field begins; where it is missing, the object that should hold it.

    Args:
        line: JSON that has been parsed before.
        param: a path as `body.messages[1].role`; None: the line itself.
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
    """Keys, or positions in a list, and where their values begin."""
    opening, at = text[at], _skip(text, at + 1)
    if opening not in "{[":
        return
    position = 0
    while text[at] not in "}]":
        key: str | int = position
        if opening == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # over the colon
        yield key, at
        _, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        position += 1


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    assert blank is not None, "it matches nothing as well"
    return blank.end()
