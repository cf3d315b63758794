"""Describes tools in the system message, in the format of Hermes, if the chat template does not support tools.

Calls of earlier answers become text of the assistant, and results become messages of the user.

Source of the format: Nous Research's Hermes function calling.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.openai.tool_calls import CallForm
from engine.tokenizer import Tokenizer

_INTRODUCTION = (
    "You may call functions to help with the user's request. Their signatures are JSON objects within <tools></tools>:"
)
_INSTRUCTION = (
    "To call a function, return a JSON object with its name and arguments within <tool_call></tool_call>:\n"
    '<tool_call>\n{"name": FUNCTION, "arguments": {ARGUMENT: VALUE}}\n</tool_call>'
)


def template_has_tools(tokenizer: Tokenizer) -> bool:
    return re.search(r"\btools\b", tokenizer.tool_template) is not None


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]], definitions: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the messages with tools, calls and results as text, for a template that does not support tools.

    Args:
        definitions: the tools as in the request; empty if only earlier messages mention tools.
    """
    rendered: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if rendered and rendered[-1].get("is_result"):  # many templates demand that user and assistant alternate
                rendered[-1]["content"] += f"\n{result}"
            else:
                rendered.append({"role": "user", "content": result, "is_result": True})
        elif calls := message.get("tool_calls"):
            texts = [message["content"], *(_call(call["function"]) for call in calls)]
            content = "\n".join(text for text in texts if text)
            rendered.append({**_without(message, "tool_calls"), "content": content})
        else:
            rendered.append(dict(message))
    rendered = [_without(message, "is_result") for message in rendered]
    if not definitions:
        return rendered
    if rendered[0]["role"] != "system":
        return [{"role": "system", "content": _block(definitions)}, *rendered]
    return [{**rendered[0], "content": f"{rendered[0]['content']}\n\n{_block(definitions)}"}, *rendered[1:]]


def _block(definitions: Sequence[Mapping[str, Any]]) -> str:
    lines = "\n".join(json.dumps(definition, ensure_ascii=False) for definition in definitions)
    return f"{_INTRODUCTION}\n<tools>\n{lines}\n</tools>\n{_INSTRUCTION}"


def _call(function: Mapping[str, Any]) -> str:
    begin, end = CallForm.HERMES.around_arguments(function["name"])
    return f"{begin}{json.dumps(function['arguments'], ensure_ascii=False)}{end}"


def _without(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != name}
