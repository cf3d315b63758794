"""Parses the messages of a chat request into the form that chat templates read."""

import json
from collections.abc import Mapping
from typing import Any

from engine.fields import Fields, InvalidRequest, encodable, kind_of, reject_unsupported
from engine.openai import without_effect
from engine.openai.nesting import check_plain

_ROLES = ("system", "developer", "user", "assistant", "tool")


def parse_messages(fields: Fields) -> list[dict[str, Any]]:
    """Returns the messages, with text parts joined, and with arguments of tool calls parsed from JSON text.

    Raises: InvalidRequest
    """
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        got = "an empty list" if messages == [] else kind_of(messages)
        message = f"messages must be a list of at least one message, got {got}"
        raise InvalidRequest(message, param="messages")
    return [_message(Fields(message, path=f"messages[{i}]")) for i, message in enumerate(messages)]


def mention_tools(messages: list[dict[str, Any]]) -> bool:
    return any(message["role"] == "tool" or "tool_calls" in message for message in messages)


def _message(message: Fields) -> dict[str, Any]:
    role = message.string("role", "")
    if role == "function" or message.get("function_call"):
        raise InvalidRequest(
            f"{message.path}: functions are OpenAI's former name of tools; use tool_calls and the role 'tool'",
            param=message.path,
            code="unsupported_parameter",
        )
    if role not in _ROLES:
        raise InvalidRequest(
            f"{message.path}.role must be {', '.join(_ROLES[:-1])} or {_ROLES[-1]}, got {role[:40]!r}",
            param=f"{message.path}.role",
        )
    if role == "tool":
        reject_unsupported(message, known={"role", "content", "tool_call_id"} | without_effect.TOOL_MESSAGE)
        return {"role": role, "tool_call_id": _tool_call_id(message), "content": _content(message)}
    if role == "assistant":
        reject_unsupported(message, known=("role", "content", "tool_calls", "reasoning_content"))
        return _answer(message)
    reject_unsupported(message, known=("role", "content", "tool_calls"))
    if message.get("tool_calls"):
        param = f"{message.path}.tool_calls"
        raise InvalidRequest(f"{param} belong to the assistant, got role {role}", param=param)
    # "developer" is OpenAI's newer name of the role "system"; templates use only the old name.
    return {"role": "system" if role == "developer" else role, "content": _content(message)}


def _answer(message: Fields) -> dict[str, Any]:
    """Parses a message of the assistant, whose content may be absent if there are tool calls or a reasoning trace."""
    more: dict[str, Any] = {}
    if message.get("reasoning_content") is not None:
        reasoning = message.string("reasoning_content", "")
        more["reasoning_content"] = encodable(reasoning, param=f"{message.path}.reasoning_content")
    if message.get("tool_calls"):
        more["tool_calls"] = _tool_calls(message)
    content = "" if more and message.get("content") is None else _content(message)
    return {"role": "assistant", "content": content, **more}


def _content(message: Fields) -> str:
    content, param = message.get("content"), f"{message.path}.content"
    if isinstance(content, str):
        return encodable(content, param=param)
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{param} must be a string or a list of text parts, got {kind_of(content)}", param=param)
    parts = [Fields(part, path=f"{param}[{i}]") for i, part in enumerate(content)]
    for part in parts:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = kind_of(part.get("type"))
            raise InvalidRequest(
                f"{part.path} must be {{'type': 'text', 'text': string}}, got type {kind}", param=part.path
            )
        reject_unsupported(part, known=("type", "text"))
    return "\n".join(encodable(part.string("text", ""), param=part.path) for part in parts)


def _tool_call_id(message: Fields) -> str:
    call_id = message.string("tool_call_id", "")
    if not call_id:
        param = f"{message.path}.tool_call_id"
        raise InvalidRequest(f"{param} must name the call that the message answers, got none", param=param)
    return encodable(call_id, param=f"{message.path}.tool_call_id")


def _tool_calls(message: Fields) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        param = f"{message.path}.tool_calls"
        raise InvalidRequest(f"{param} must be a list, got {kind_of(calls)}", param=param)
    return [_tool_call(Fields(call, path=f"{message.path}.tool_calls[{i}]")) for i, call in enumerate(calls)]


def _tool_call(call: Fields) -> dict[str, Any]:
    if call.string("type", "function") != "function":
        raise InvalidRequest(f"{call.path}.type must be 'function'", param=f"{call.path}.type")
    reject_unsupported(call, known={"id", "type", "function"} | without_effect.TOOL_CALL)
    function = Fields(call.get("function"), path=f"{call.path}.function")
    reject_unsupported(function, known=("name", "arguments"))
    name = encodable(function.string("name", ""), param=f"{function.path}.name")
    if not name:
        raise InvalidRequest(f"{function.path}.name must be the tool's name, got none", param=f"{function.path}.name")
    arguments = _arguments(function.string("arguments", ""), param=f"{function.path}.arguments")
    return {
        "id": encodable(call.string("id", ""), param=f"{call.path}.id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _arguments(text: str, *, param: str) -> Mapping[str, Any]:
    """Parses the arguments of a call. Templates need an object, so an empty text becomes an empty object."""
    if not text.strip():
        return {}
    try:
        arguments = json.loads(encodable(text, param=param))
    except RecursionError as error:
        raise InvalidRequest(f"{param} is nested too deeply", param=param) from error
    except ValueError as error:
        raise InvalidRequest(f"{param} must be JSON text: {error}", param=param) from error
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{param} must be the text of a JSON object, got {kind_of(arguments)}", param=param)
    check_plain(arguments, param=param)
    return arguments
