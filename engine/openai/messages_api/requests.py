"""Parses the bodies of POST /v1/messages and /v1/messages/count_tokens.

A body is translated to the body of a chat completion, which `parse_chat` parses.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from engine.fields import Fields, InvalidRequest, kind_of, reject_unknown, reject_unsupported
from engine.openai import without_effect
from engine.openai.messages_api.blocks import Messages, parse_input
from engine.openai.reasoning import BUDGET, knows_variable
from engine.openai.renaming import renamed_errors
from engine.openai.requests import ParsedRequest, encode_messages, parse_chat
from engine.openai.tool_calls import CallForm
from engine.openai.tools import parse_tools
from engine.tokenizer import Tokenizer

# Members that chat completions have as well. Those after `metadata` are not in Anthropic's API.
_SAME = frozenset({"model", "max_tokens", "stream", "temperature", "top_p", "top_k", "metadata"})
_SAME |= {"seed", "min_p", "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty"}
_SAME |= {"logit_bias", "stop_token_ids", "ignore_eos", "remember_answers", "chat_template_kwargs"}
# Members of a body of count_tokens.
_COUNTED = frozenset({"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"})
_COUNTED |= {"chat_template_kwargs"}
_TRANSLATED = frozenset({"messages", "system", "stop_sequences", "tools", "tool_choice", "thinking", "output_config"})
# Members that are not supported. They are refused unless they have one of these values, which have no effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "container": (),
    "context_management": (),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "user_profile_id": (),
    "workspace_id": (),
}
_NAMES = {
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "tool_choice.function": "tool_choice",
    BUDGET: "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_THINKING = {"enabled": ("type", "budget_tokens", "display"), "adaptive": ("type", "display"), "disabled": ("type",)}


def parse_message(
    body: Mapping[str, Any], *, tokenizer: Tokenizer, max_seq_len: int, call_form: CallForm | None
) -> ParsedRequest:
    """Reads the body of POST /v1/messages. Raises: InvalidRequest."""
    fields = Fields(body)
    _refuse_unsupported(fields, known=_SAME | _TRANSLATED)
    if fields.get("max_tokens") is None:
        raise InvalidRequest("max_tokens is required", param="max_tokens", code="missing_required_parameter")
    messages = parse_input(fields)
    chat = _translated(fields, messages) | _thinking(fields, tokenizer)
    with renamed_errors(_NAMES | messages.names):
        parsed = parse_chat(chat, tokenizer=tokenizer, max_seq_len=max_seq_len, call_form=call_form)
    is_format = parsed.grammar_param == "response_format"
    return replace(parsed, grammar_param="output_config.format") if is_format else parsed


def message_prompt(body: Mapping[str, Any], *, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the token ids of the prompt, which may exceed the context, for count_tokens. Raises: InvalidRequest."""
    fields = Fields(body)
    _refuse_unsupported(fields, known=_COUNTED)
    messages = parse_input(fields)
    chat = Fields(_translated(fields, messages) | _thinking(fields, tokenizer))
    with renamed_errors(_NAMES | messages.names):
        return encode_messages(chat, tokenizer=tokenizer, use=parse_tools(chat))


def _refuse_unsupported(fields: Fields, *, known: Collection[str]) -> None:
    reject_unknown(fields, known={*known, *_NEUTRAL, *without_effect.MESSAGE_BLOCK})
    for name, neutral in _NEUTRAL.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            allowed = " or ".join(["absent", *map(repr, neutral)])
            raise InvalidRequest(
                f"{name} is not supported: it must be {allowed}, got {kind_of(value)}",
                param=name,
                code="unsupported_parameter",
            )


def _translated(fields: Fields, messages: Messages) -> dict[str, Any]:
    """Returns the body of the chat completion, and adds the names of its tools to `messages.names`."""
    chat: dict[str, Any] = {name: fields.get(name) for name in fields if name in _SAME}
    chat |= {"messages": messages.messages, "stop": fields.get("stop_sequences"), **_output_config(fields)}
    tools = fields.get("tools")
    if isinstance(tools, list):
        tools = [_tool(Fields(tool, path=f"tools[{i}]")) for i, tool in enumerate(tools)]
        for i in range(len(tools)):
            messages.names |= {f"tools[{i}].function": f"tools[{i}]"}
            messages.names |= {f"tools[{i}].function.parameters": f"tools[{i}].input_schema"}
    return chat | {"tools": tools} | _tool_choice(fields)


def _tool(tool: Fields) -> dict[str, Any]:
    kind = tool.string("type", "custom")
    if kind != "custom":
        raise InvalidRequest(
            f"{tool.path}.type must be 'custom', because this route runs no tools itself, got {kind[:40]!r}",
            param=f"{tool.path}.type",
            code="unsupported_parameter",
        )
    known = {"type", "name", "description", "input_schema", "strict"}
    reject_unsupported(tool, known=known | without_effect.MESSAGE_BLOCK)
    names = {"name": "name", "description": "description", "parameters": "input_schema", "strict": "strict"}
    function = {ours: tool.get(name) for ours, name in names.items() if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(fields: Fields) -> dict[str, Any]:
    if fields.get("tool_choice") is None:
        return {}
    choice = Fields(fields.mapping("tool_choice"), path="tool_choice")
    kind = choice.string("type", "")
    reject_unknown(choice, known=("type", "name", "disable_parallel_tool_use"))
    if kind == "tool":
        translated: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in _CHOICES and choice.get("name") is None:
        translated = _CHOICES[kind]
    else:
        raise InvalidRequest(
            f"tool_choice.type must be auto, any, none, or tool with a name, got {kind[:40]!r}",
            param="tool_choice.type",
        )
    return {"tool_choice": translated, "parallel_tool_calls": not choice.boolean("disable_parallel_tool_use", False)}


def _thinking(fields: Fields, tokenizer: Tokenizer) -> dict[str, Any]:
    """Translates `thinking` to members of a chat completion.

    `adaptive` and `enabled` turn the template's switch for reasoning on, and `disabled` turns it off. If the model has
    no reasoning, `disabled` is allowed without a switch.
    """
    if fields.get("thinking") is None:
        return {}
    thinking = Fields(fields.mapping("thinking"), path="thinking")
    kind = thinking.string("type", "")
    if kind not in _THINKING:
        raise InvalidRequest(
            f"thinking.type must be {', '.join(_THINKING)}, got {kind[:40]!r}",
            param="thinking.type",
            code="unsupported_parameter",
        )
    reject_unsupported(thinking, known=_THINKING[kind])
    if thinking.get("display") not in (None, "summarized"):
        raise InvalidRequest(
            f"thinking.display must be absent or 'summarized', got {kind_of(thinking.get('display'))}",
            param="thinking.display",
            code="unsupported_parameter",
        )
    has_switch = knows_variable("enable_thinking", tokenizer)
    if kind == "disabled" and tokenizer.think_markers is not None and not has_switch:
        raise InvalidRequest(
            "thinking.type disabled is not supported: this model's chat template has no switch for thinking",
            param="thinking.type",
            code="unsupported_parameter",
        )
    chat: dict[str, Any] = {"enable_thinking": kind != "disabled"} if has_switch else {}
    if kind == "enabled":
        budget = thinking.integer("budget_tokens", at_least=0)
        if budget is None:
            message = "thinking.budget_tokens is required for thinking.type enabled"
            raise InvalidRequest(message, param="thinking.budget_tokens", code="missing_required_parameter")
        chat[BUDGET] = budget
    return chat


def _output_config(fields: Fields) -> dict[str, Any]:
    config = Fields(fields.mapping("output_config"), path="output_config")
    reject_unsupported(config, known=("effort", "format"))
    chat: dict[str, Any] = {"reasoning_effort": config.get("effort")}
    if config.get("format") is None:
        return chat
    described = Fields(config.get("format"), path="output_config.format")
    reject_unsupported(described, known=("type", "schema"))
    if described.get("type") != "json_schema":
        raise InvalidRequest("output_config.format.type must be 'json_schema'", param="output_config.format.type")
    schema = {"name": "output", "schema": described.get("schema")}
    return chat | {"response_format": {"type": "json_schema", "json_schema": schema}}
