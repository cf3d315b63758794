"""Encodes server-sent events, the parts of a streamed response.

Source: the HTML standard, section "Server-sent events", whose comment lines begin with a colon.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from engine.openai.answer import Piece
from engine.request import SpeculationStats

# Clients that split lines like Python's splitlines treat these characters as line ends, so they are escaped.
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}

Usage = dict[str, Any]  # as in chat completions; other formats translate it


class Events(Protocol):
    """Builds the encoded events of one streamed response."""

    def opening(self) -> list[bytes]:
        """Returns the events before the first piece."""

    def of(self, index: int, piece: Piece, usage: Usage) -> list[bytes]:
        """Returns the events of a choice's next piece. `usage`: of the answer so far."""

    def closing(self, usage: Usage, stats: SpeculationStats) -> list[bytes]:
        """Returns the events after the last piece."""

    def failed(self, error: Mapping[str, Any]) -> list[bytes]:
        """Returns the last events of a response that cannot be completed. `error`: OpenAI's error object."""


def encode_event(data: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """Encodes one event. `name`: the type of the event; OpenAI's chunks have none."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    line = f"data: {text.translate(_LINE_ENDS)}\n\n"
    return (line if name is None else f"event: {name}\n{line}").encode()


def usage_comment(usage: Usage) -> bytes:
    """Returns the usage as a comment line. Clients ignore it; the gateway reads it if the stream is interrupted."""
    return f": {json.dumps({'usage': usage}, separators=(',', ':'))}\n".encode()
