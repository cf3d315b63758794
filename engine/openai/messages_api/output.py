"""The content blocks of a message: `thinking` for the reasoning trace, `text`, and a `tool_use` for each call.

Each change is returned as an event of the stream. A message that is not streamed is built in the same way, so it has
the same blocks as a streamed message.
"""

import json
from typing import Any

from engine.openai.tool_calls import CallPiece

Event = dict[str, Any]


class Output:
    """The blocks of one message. At most one block, the last one, is open at a time."""

    def __init__(self, id_suffix: str) -> None:
        """`id_suffix`: the end of the message's id, which is also part of the ids of tool calls."""
        self.blocks: list[dict[str, Any]] = []
        self._id_suffix = id_suffix
        self._open_kind: str | None = None
        self._arguments = ""  # JSON text of the open call's input

    def add_reasoning(self, text: str) -> list[Event]:
        events = self._continue({"type": "thinking", "thinking": "", "signature": ""})
        self.blocks[-1]["thinking"] += text
        return [*events, self._delta({"type": "thinking_delta", "thinking": text})]

    def add_text(self, text: str) -> list[Event]:
        events = self._continue({"type": "text", "text": ""})
        self.blocks[-1]["text"] += text
        return [*events, self._delta({"type": "text_delta", "text": text})]

    def add_call(self, piece: CallPiece) -> list[Event]:
        events: list[Event] = []
        if piece.name is not None:
            call_id = f"toolu_{self._id_suffix}_{len(self.blocks)}"
            events = self.close() + self._open({"type": "tool_use", "id": call_id, "name": piece.name, "input": {}})
        self._arguments += piece.arguments
        if piece.arguments:
            events.append(self._delta({"type": "input_json_delta", "partial_json": piece.arguments}))
        return events

    def close(self) -> list[Event]:
        """Closes the open block, if there is one."""
        if self._open_kind is None:
            return []
        if self._open_kind == "tool_use":
            self.blocks[-1] |= _input(self._arguments)
            self._arguments = ""
        self._open_kind = None
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _continue(self, block: dict[str, Any]) -> list[Event]:
        return [] if self._open_kind == block["type"] else self.close() + self._open(block)

    def _open(self, block: dict[str, Any]) -> list[Event]:
        self.blocks.append(block)
        self._open_kind = block["type"]
        return [{"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _input(arguments: str) -> dict[str, Any]:
    """Returns the input of a `tool_use` block. If the token limit has cut a call off, its arguments are not valid JSON.
    Their text is then returned as `partial_json`, which is not in Anthropic's API."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = None
    return {"input": parsed} if isinstance(parsed, dict) else {"input": {}, "partial_json": arguments}
