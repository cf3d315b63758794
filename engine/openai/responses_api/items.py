"""Translates the input items of a response into the messages of a chat completion.

A reasoning trace and the message and function calls that follow it become one message of the assistant. A chat template
expects the parts of one turn in one message. Members that OpenAI adds to the items of its answers, such as
`id`, have no effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.fields import Fields, InvalidRequest, kind_of, reject_unsupported

_ROLES = ("user", "system", "developer", "assistant")
_TEXT_TYPES = ("input_text", "output_text")


@dataclass(slots=True)
class Messages:
    """messages: as in a chat completion.

    names: for `renamed_errors`, maps the name of each translated part to the name of the original part.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, message: dict[str, Any], *, name: str, content_name: str) -> None:
        if message["role"] == "assistant" and self._ends_with_trace:
            message = {**self.messages.pop(), **message}
        path = f"messages[{len(self.messages)}]"
        self.names |= {path: name, f"{path}.content": content_name, f"{path}.tool_call_id": f"{name}.call_id"}
        self.messages.append(message)

    def add_reasoning(self, text: str, *, name: str) -> None:
        self.add({"role": "assistant", "content": None, "reasoning_content": text}, name=name, content_name=name)

    def add_call(self, call: dict[str, Any], *, name: str) -> None:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.add({"role": "assistant", "content": None}, name=name, content_name=name)
        calls = self.messages[-1].setdefault("tool_calls", [])
        path = f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}]"
        self.names |= {path: name, f"{path}.function": name, f"{path}.id": f"{name}.call_id"}
        calls.append(call)

    @property
    def _ends_with_trace(self) -> bool:
        return bool(self.messages) and self.messages[-1].keys() == {"role", "content", "reasoning_content"}


def parse_input(fields: Fields) -> Messages:
    """Reads `instructions` and `input`. Raises: InvalidRequest."""
    parsed = Messages(names={"messages": "input"})
    instructions = fields.string("instructions", "")
    if instructions:
        parsed.add({"role": "system", "content": instructions}, name="instructions", content_name="instructions")
    given = fields.get("input")
    if isinstance(given, str):
        parsed.add({"role": "user", "content": given}, name="input", content_name="input")
        return parsed
    if not isinstance(given, list) or not given:
        raise InvalidRequest(f"input must be a string or a list of items, got {kind_of(given)}", param="input")
    for index, item in enumerate(given):
        _add_item(Fields(item, path=f"input[{index}]"), parsed)
    return parsed


def _add_item(item: Fields, parsed: Messages) -> None:
    kind = item.string("type", "message")
    if kind == "message":
        reject_unsupported(item, known=("type", "role", "content", "id", "status"))
        role = item.string("role", "")
        if role not in _ROLES:
            param = f"{item.path}.role"
            raise InvalidRequest(f"{param} must be {', '.join(_ROLES)}, got {role[:40]!r}", param=param)
        message = {"role": role, "content": _content(item, "content")}
        parsed.add(message, name=item.path, content_name=f"{item.path}.content")
    elif kind == "reasoning":
        reject_unsupported(item, known=("type", "content", "id", "status"))
        parsed.add_reasoning(_trace(item), name=item.path)
    elif kind == "function_call":
        reject_unsupported(item, known=("type", "call_id", "name", "arguments", "id", "status"))
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        parsed.add_call(call, name=item.path)
    elif kind == "function_call_output":
        reject_unsupported(item, known=("type", "call_id", "output", "id", "status"))
        message = {"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item, "output")}
        parsed.add(message, name=item.path, content_name=f"{item.path}.output")
    else:
        raise InvalidRequest(
            f"{item.path}.type must be message, reasoning, function_call or function_call_output, got {kind[:40]!r}",
            param=f"{item.path}.type",
            code="unsupported_parameter",
        )


def _trace(item: Fields) -> str:
    parts = item.get("content")
    if not isinstance(parts, list):
        param = f"{item.path}.content"
        raise InvalidRequest(f"{param} must be a list of reasoning_text parts, got {kind_of(parts)}", param=param)
    fields = [Fields(part, path=f"{item.path}.content[{i}]") for i, part in enumerate(parts)]
    return "".join(_text_of(part, ("reasoning_text",)) for part in fields)


def _content(item: Fields, name: str) -> Any:
    """Translates a list of parts. Any other value is returned as it is; `parse_chat` refuses it if it is not a text."""
    content = item.get(name)
    if not isinstance(content, list):
        return content
    parts = [Fields(part, path=f"{item.path}.{name}[{i}]") for i, part in enumerate(content)]
    return [{"type": "text", "text": _text_of(part, _TEXT_TYPES)} for part in parts]


def _text_of(part: Fields, types: Sequence[str]) -> str:
    kind = part.string("type", "")
    if kind not in types:
        raise InvalidRequest(
            f"{part.path}.type must be {' or '.join(types)}, got {kind[:40]!r}",
            param=f"{part.path}.type",
            code="unsupported_parameter",
        )
    reject_unsupported(part, known=("type", "text", "annotations", "logprobs"))
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{part.path}.text must be a string, got {kind_of(text)}", param=f"{part.path}.text")
    return text
