"""Translates system text and messages of content blocks into the messages of a chat completion.

The blocks of an answer (text, reasoning trace and tool calls) become one message of the assistant. A `tool_result`
becomes a message with the role `tool`, and the texts before and after it become messages of the user.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.fields import Fields, InvalidRequest, kind_of, reject_unsupported
from engine.openai import without_effect

_ROLES = ("user", "assistant", "system")


@dataclass(slots=True)
class Messages:
    """messages: as in a chat completion.

    names: for `renamed_errors`, maps the name of each translated part to the name of the original part.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, message: dict[str, Any], *, name: str, content_name: str | None = None) -> str:
        """Adds a translated message, and returns its name. `name`: name of the original message or block."""
        path = f"messages[{len(self.messages)}]"
        self.names |= {path: name, f"{path}.content": content_name or f"{name}.content"}
        self.messages.append(message)
        return path


def parse_input(fields: Fields) -> Messages:
    """Reads `system` and `messages`. Raises: InvalidRequest."""
    parsed = Messages()
    if fields.get("system") is not None:
        content = _content(fields.get("system"), "system")
        parsed.add({"role": "system", "content": content}, name="system", content_name="system")
    given = fields.get("messages")
    if not isinstance(given, list) or not given:
        got = "an empty list" if given == [] else kind_of(given)
        raise InvalidRequest(f"messages must be a list of at least one message, got {got}", param="messages")
    for index, item in enumerate(given):
        message = Fields(item, path=f"messages[{index}]")
        reject_unsupported(message, known=("role", "content"))
        role = message.string("role", "")
        if role not in _ROLES:
            param = f"{message.path}.role"
            raise InvalidRequest(f"{param} must be {', '.join(_ROLES)}, got {role[:40]!r}", param=param)
        (_add_answer if role == "assistant" else _add_turn)(message, role, parsed)
    if parsed.messages[-1]["role"] == "assistant":
        param = f"messages[{len(given) - 1}].role"
        message_text = f"{param} of the last message must be user: continuing an answer is not supported"
        raise InvalidRequest(message_text, param=param, code="unsupported_parameter")
    return parsed


def _add_turn(message: Fields, role: str, parsed: Messages) -> None:
    content = message.get("content")
    if not isinstance(content, list) or role == "system":
        translated = _content(content, f"{message.path}.content")
        parsed.add({"role": role, "content": translated}, name=message.path)
        return
    texts: list[dict[str, Any]] = []
    for block in _blocks(content, f"{message.path}.content", ("text", "tool_result")):
        if block.get("type") == "text":
            if not texts:
                parsed.add({"role": role, "content": texts}, name=message.path)
            texts.append({"type": "text", "text": _text(block)})
        else:
            texts = []
            _add_result(block, parsed)


def _add_result(block: Fields, parsed: Messages) -> None:
    reject_unsupported(block, known={"type", "tool_use_id", "content", "is_error"} | without_effect.MESSAGE_BLOCK)
    content = "" if block.get("content") is None else _content(block.get("content"), f"{block.path}.content")
    if block.boolean("is_error", False):  # chat templates have no other place for this flag
        content = [{"type": "text", "text": "Error:"}, *_parts(content)]
    message = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
    path = parsed.add(message, name=block.path)
    parsed.names[f"{path}.tool_call_id"] = f"{block.path}.tool_use_id"


def _add_answer(message: Fields, role: str, parsed: Messages) -> None:
    content = message.get("content")
    if not isinstance(content, list):
        parsed.add({"role": role, "content": content}, name=message.path)
        return
    answer: dict[str, Any] = {"role": role, "content": None}
    path = parsed.add(answer, name=message.path)
    traces: list[str] = []
    texts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in _blocks(content, f"{message.path}.content", ("text", "thinking", "tool_use"), may_be_empty=True):
        if block.get("type") == "text":
            texts.append({"type": "text", "text": _text(block)})
        elif block.get("type") == "thinking":
            reject_unsupported(block, known={"type", "thinking"} | without_effect.THINKING_BLOCK)
            traces.append(block.string("thinking", ""))
        else:
            call_path = f"{path}.tool_calls[{len(calls)}]"
            arguments = {f"{call_path}.function.arguments": f"{block.path}.input"}
            parsed.names |= {call_path: block.path, f"{call_path}.function": block.path} | arguments
            calls.append(_call(block))
    if trace := "".join(traces):
        answer["reasoning_content"] = trace
    if calls:
        answer["tool_calls"] = calls
    answer["content"] = texts or (None if trace or calls else "")


def _call(block: Fields) -> dict[str, Any]:
    reject_unsupported(block, known={"type", "id", "name", "input"} | without_effect.MESSAGE_BLOCK)
    if not isinstance(block.get("input"), Mapping):
        param = f"{block.path}.input"
        raise InvalidRequest(f"{param} must be a JSON object, got {kind_of(block.get('input'))}", param=param)
    function = {"name": block.get("name"), "arguments": json.dumps(block.get("input"), ensure_ascii=False)}
    return {"id": block.get("id"), "type": "function", "function": function}


def _content(value: Any, path: str) -> str | list[dict[str, Any]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} must be a string or a list of blocks, got {kind_of(value)}", param=path)
    return [{"type": "text", "text": _text(block)} for block in _blocks(value, path, ("text",))]


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _blocks(values: list[Any], path: str, kinds: Collection[str], *, may_be_empty: bool = False) -> list[Fields]:
    if not values and not may_be_empty:
        raise InvalidRequest(f"{path} must have at least one block, got an empty list", param=path)
    blocks = [Fields(value, path=f"{path}[{index}]") for index, value in enumerate(values)]
    for block in blocks:
        kind = block.string("type", "")
        if kind not in kinds:
            param = f"{block.path}.type"
            allowed = " or ".join(kinds)
            raise InvalidRequest(
                f"{param} must be {allowed}, got {kind[:40]!r}", param=param, code="unsupported_parameter"
            )
    return blocks


def _text(block: Fields) -> str:
    reject_unsupported(block, known={"type", "text"} | without_effect.MESSAGE_BLOCK)
    text = block.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{block.path}.text must be a string, got {kind_of(text)}", param=f"{block.path}.text")
    return text
