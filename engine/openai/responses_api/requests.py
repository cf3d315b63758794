"""Parses the body of POST /v1/responses: translates it to the body of a chat completion, which `parse_chat` parses.

The route is stateless: it stores no response, and therefore refuses `store: true` and `previous_response_id`. Like the
other routes, it refuses every member that it does not support.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.fields import Fields, InvalidRequest, kind_of, reject_unknown
from engine.openai.reasoning import BUDGET
from engine.openai.renaming import renamed_errors
from engine.openai.requests import ParsedRequest, parse_chat
from engine.openai.responses_api.items import Messages, parse_input
from engine.openai.tool_calls import CallForm
from engine.tokenizer import Tokenizer

LOGPROBS = "message.output_text.logprobs"  # a value of `include`

# Members that are passed on to the chat completion unchanged, under the same name. The members in the lines below the
# one that ends with `user` do not exist in OpenAI's Responses API.
_SAME = frozenset({"model", "stream", "stream_options", "temperature", "top_p", "parallel_tool_calls", "metadata"})
_SAME |= {"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user"}
_SAME |= {"seed", "top_k", "min_p", "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty"}
_SAME |= {"logit_bias", "stop", "stop_token_ids", "ignore_eos", "remember_answers"}
_SAME |= {"chat_template_kwargs", "enable_thinking", "separate_reasoning", BUDGET}
_TRANSLATED = frozenset({"input", "instructions", "max_output_tokens", "text", "tools", "tool_choice", "include"})
_TRANSLATED |= {"top_logprobs", "reasoning"}
# Members that are not supported, each with the values that have no effect. A member is accepted if it is absent or
# null, or if it has one of these values. Any other value is refused.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "truncation": ("disabled",),
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
    "max_tool_calls": (),
    "moderation": (),
    "context_management": ([],),
    "prompt_cache_options": (),
    "access_programs": (),
    "image": (),
}
_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "tool_choice.function": "tool_choice",
}


def parse_response(
    body: Mapping[str, Any], *, tokenizer: Tokenizer, max_seq_len: int, call_form: CallForm | None
) -> ParsedRequest:
    """Reads the body of POST /v1/responses. Raises: InvalidRequest."""
    fields = Fields(body)
    _refuse_unsupported(fields)
    messages = parse_input(fields)
    chat, names = _translated(fields, messages)
    with renamed_errors(_NAMES | messages.names | names):
        parsed = parse_chat(chat, tokenizer=tokenizer, max_seq_len=max_seq_len, call_form=call_form)
    if parsed.calls is not None and parsed.sampling.num_logprobs is not None:
        raise InvalidRequest(
            f"include: {LOGPROBS} is not supported for an answer that may call tools",
            param="include",
            code="unsupported_parameter",
        )
    return replace(parsed, grammar_param="text.format") if parsed.grammar_param == "response_format" else parsed


def _translated(fields: Fields, messages: Messages) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the body of the chat completion, and the names to restore in errors about its tools.

    The names map a path in the chat completion, such as `tools[0].function`, to the path in the caller's body.
    """
    chat: dict[str, Any] = {name: fields.get(name) for name in fields if name in _SAME}
    chat["messages"] = messages.messages
    chat["max_completion_tokens"] = fields.get("max_output_tokens")
    chat |= _text(fields) | _reasoning(fields)
    num_top = fields.integer("top_logprobs", at_least=0)
    if _wants_logprobs(fields):
        chat |= {"logprobs": True, "top_logprobs": num_top}
    elif num_top:
        raise InvalidRequest(f"top_logprobs above 0 requires {LOGPROBS} in include", param="top_logprobs")
    tools = fields.get("tools")
    if isinstance(tools, list):
        tools = [_tool(Fields(tool, path=f"tools[{i}]")) for i, tool in enumerate(tools)]
    choice = fields.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        reject_unknown(Fields(choice, path="tool_choice"), known=("type", "name"))
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    chat |= {"tools": tools, "tool_choice": choice}
    names = {f"tools[{i}].function": f"tools[{i}]" for i in range(len(tools))} if isinstance(tools, list) else {}
    return chat, names


def _refuse_unsupported(fields: Fields) -> None:
    reject_unknown(fields, known=_SAME | _TRANSLATED | _NEUTRAL.keys())
    for name, neutral in _NEUTRAL.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            allowed = " or ".join(["absent", *map(json.dumps, neutral)])
            raise InvalidRequest(
                f"{name} is not supported: it must be {allowed}, got {kind_of(value)}",
                param=name,
                code="unsupported_parameter",
            )


def _text(fields: Fields) -> dict[str, Any]:
    text = Fields(fields.mapping("text"), path="text")
    reject_unknown(text, known=("format", "verbosity"))
    chat: dict[str, Any] = {"verbosity": text.get("verbosity")}
    if text.get("format") is None:
        return chat
    described = Fields(text.get("format"), path="text.format")
    kind = described.string("type", "")
    if kind == "json_schema":
        reject_unknown(described, known=("type", "name", "description", "schema", "strict"))
        schema = {name: described.get(name) for name in described if name != "type"}
        return chat | {"response_format": {"type": kind, "json_schema": schema}}
    reject_unknown(described, known=("type",))
    return chat | {"response_format": {"type": kind}}


def _reasoning(fields: Fields) -> dict[str, Any]:
    reasoning = Fields(fields.mapping("reasoning"), path="reasoning")
    for name in reasoning:
        if name != "effort" and reasoning.get(name) is not None:
            param = f"reasoning.{name[:80]}"
            raise InvalidRequest(f"{param} is not supported", param=param, code="unsupported_parameter")
    return {"reasoning_effort": reasoning.get("effort")}


def _wants_logprobs(fields: Fields) -> bool:
    include = fields.get("include")
    if include is not None and not isinstance(include, list):
        raise InvalidRequest(f"include must be a list, got {kind_of(include)}", param="include")
    for index, name in enumerate(include or ()):
        if name != LOGPROBS:
            raise InvalidRequest(
                f"include[{index}] must be {LOGPROBS!r}, got {kind_of(name)}",
                param=f"include[{index}]",
                code="unsupported_parameter",
            )
    return bool(include)


def _tool(tool: Fields) -> dict[str, Any]:
    kind = tool.string("type", "")
    if kind != "function":
        raise InvalidRequest(
            f"{tool.path}.type must be 'function', because this route runs no tools itself, got {kind[:40]!r}",
            param=f"{tool.path}.type",
            code="unsupported_parameter",
        )
    function = {name: tool.get(name) for name in tool if name != "type" and tool.get(name) is not None}
    return {"type": "function", "function": function}
