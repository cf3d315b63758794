"""The output items of a response: `reasoning` for the trace, a message for text, a `function_call` for each call.

Each change of the output is returned as an event of the stream. A response that is not streamed is built in the same
way, so it has the same items as a streamed response.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.openai.tool_calls import CallPiece

Event = dict[str, Any]  # without its sequence number


class Output:
    """The items of one response. At most one item, the last one, is open at a time."""

    def __init__(self, id_suffix: str) -> None:
        """`id_suffix`: the end of the response's id, which is also part of the ids of items."""
        self.items: list[dict[str, Any]] = []
        self._id_suffix = id_suffix
        self._is_open = False

    def add_reasoning(self, text: str) -> list[Event]:
        events = [] if self._is_open and self._last["type"] == "reasoning" else self._open_reasoning()
        self._last["content"][0]["text"] += text
        return [*events, {"type": "response.reasoning_text.delta", "delta": text} | self._place_of_part()]

    def add_text(self, text: str, logprobs: Sequence[Mapping[str, Any]]) -> list[Event]:
        events = [] if self._is_open and self._last["type"] == "message" else self._open_message()
        part = self._last["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        delta = {"type": "response.output_text.delta", "delta": text, "logprobs": list(logprobs)}
        return [*events, delta | self._place_of_part()]

    def add_call(self, piece: CallPiece) -> list[Event]:
        events = [] if piece.name is None else self._open_call(piece.name)
        self._last["arguments"] += piece.arguments
        if piece.arguments:
            delta = {"type": "response.function_call_arguments.delta", "delta": piece.arguments}
            events.append(delta | self._place())
        return events

    def close(self, *, status: str = "completed") -> list[Event]:
        """Closes the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self._last
        item["status"] = status
        done = {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": _copy(item)}
        if item["type"] == "function_call":
            arguments = {"type": "response.function_call_arguments.done", "arguments": item["arguments"]}
            return [arguments | {"name": item["name"]} | self._place(), done]
        (part,) = item["content"]
        text = {"type": f"response.{part['type']}.done", "text": part["text"]}
        if part["type"] == "output_text":
            text["logprobs"] = list(part["logprobs"])
        end = {"type": "response.content_part.done", "part": _copy(part)}
        return [text | self._place_of_part(), end | self._place_of_part(), done]

    def open_if_empty(self) -> list[Event]:
        """Opens an empty message if there is no item, because the answer has neither text nor calls."""
        return [] if self.items else self._open_message()

    def copied_items(self) -> list[dict[str, Any]]:
        return [_copy(item) for item in self.items]

    @property
    def _last(self) -> dict[str, Any]:
        return self.items[-1]

    def _open_reasoning(self) -> list[Event]:
        item = {"id": self._id("rs"), "type": "reasoning", "summary": [], "status": "in_progress", "content": []}
        return self._open_with_part(item, {"type": "reasoning_text", "text": ""})

    def _open_message(self) -> list[Event]:
        item = {"id": self._id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        return self._open_with_part(item, {"type": "output_text", "text": "", "annotations": [], "logprobs": []})

    def _open_with_part(self, item: dict[str, Any], part: dict[str, Any]) -> list[Event]:
        events = self.close() + self._open(item)
        self._last["content"] = [part]
        return [*events, {"type": "response.content_part.added", "part": _copy(part)} | self._place_of_part()]

    def _open_call(self, name: str) -> list[Event]:
        events = self.close()
        ids = {"id": self._id("fc"), "call_id": self._id("call")}
        return events + self._open(
            {"type": "function_call", **ids, "name": name, "arguments": "", "status": "in_progress"}
        )

    def _open(self, item: dict[str, Any]) -> list[Event]:
        self.items.append(item)
        self._is_open = True
        return [{"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": _copy(item)}]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._last["id"], "output_index": len(self.items) - 1}

    def _place_of_part(self) -> dict[str, Any]:
        return self._place() | {"content_index": 0}

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._id_suffix}_{len(self.items)}"


def _copy(value: Mapping[str, Any]) -> dict[str, Any]:
    """Copies an item or a part, because an event that has been returned must not change any more."""
    copied = dict(value)
    for name in ("content", "logprobs", "annotations"):
        if isinstance(copied.get(name), list):
            copied[name] = [_copy(one) for one in copied[name]]
    return copied
