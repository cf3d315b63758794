"""Parses the tools of a request into the input of chat templates and grammars.

A model writes calls in the format with which it was trained (`engine.openai.tool_calls.CallForm`). Where OpenAI's
options guarantee something about calls, a grammar in that format enforces the guarantee.

    tool_choice "auto"      the answer is free text with calls; only `strict` and parallel_tool_calls false constrain it
    "required", a function  the answer begins with a call, whose arguments match the tool's schema
    "none"                  the tools have no effect
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.fields import Fields, InvalidRequest, kind_of, reject_unknown
from engine.grammars.grammar import Grammar, GrammarKind
from engine.openai.nesting import check_plain
from engine.openai.output_format import make_grammar
from engine.openai.tool_calls import CallForm

NAMES = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
MAX_TOOLS = 128

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    parameters: Mapping[str, Any]  # a JSON schema
    strict: bool
    definition: Mapping[str, Any]  # the tool as received, for the template


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """tools: the tools in the prompt.

    callable: the tools that the answer may call: all tools, or the tool that the request names.
    """

    tools: tuple[Tool, ...]
    callable: tuple[Tool, ...]
    choice: Literal["auto", "required"]
    parallel: bool


def parse_tools(fields: Fields) -> ToolUse | None:
    """Returns the request's tools; None if there are no tools, or if none of them may be called.

    Raises: InvalidRequest
    """
    parallel = fields.boolean("parallel_tool_calls", True)
    definitions = fields.get("tools")
    if definitions is not None and (not isinstance(definitions, list) or len(definitions) > MAX_TOOLS):
        number = f"{len(definitions)}" if isinstance(definitions, list) else kind_of(definitions)
        raise InvalidRequest(f"tools must be a list of at most {MAX_TOOLS} tools, got {number}", param="tools")
    tools = tuple(_tool(Fields(tool, path=f"tools[{i}]")) for i, tool in enumerate(definitions or ()))
    names = [tool.name for tool in tools]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"tools must have different names, got {duplicate!r} twice", param="tools")
    choice = fields.get("tool_choice")
    if choice is None or choice == "auto":
        return ToolUse(tools=tools, callable=tools, choice="auto", parallel=parallel) if tools else None
    if choice == "none":
        return None
    if not tools:
        raise InvalidRequest("tool_choice needs tools, got none", param="tool_choice")
    if choice == "required":
        return ToolUse(tools=tools, callable=tools, choice="required", parallel=parallel)
    return ToolUse(tools=tools, callable=(_named(choice, tools),), choice="required", parallel=False)


def call_grammar(use: ToolUse, form: CallForm) -> Grammar | None:
    """Returns the grammar that enforces the options; None if they do not constrain the answer.

    Raises: InvalidRequest: the schemas of all tools together are too long.
    Source: the format of XGrammar's structural tags.
    """
    required = use.choice == "required"
    if not required and use.parallel and not any(tool.strict for tool in use.callable):
        return None
    parallel = use.parallel and form.separator is not None
    tags = [_tag(tool, form, by_schema=required or tool.strict) for tool in use.callable]
    if required and parallel:
        tag_format: dict[str, Any] = {"type": "tags_with_separator", "separator": form.separator, "at_least_one": True}
    else:
        tag_format = {"type": "triggered_tags", "triggers": [form.trigger], "at_least_one": required}
    tag_format |= {"tags": tags, "stop_after_first": not parallel}
    source = json.dumps({"type": "structural_tag", "format": tag_format})
    return make_grammar(GrammarKind.STRUCTURAL_TAG, source, param="tools")


def _tool(tool: Fields) -> Tool:
    if tool.string("type", "function") != "function":
        kind = tool.string("type", "")[:40]
        raise InvalidRequest(f"{tool.path}.type must be 'function', got {kind!r}", param=f"{tool.path}.type")
    reject_unknown(tool, known=("type", "function"))
    function = Fields(tool.get("function"), path=f"{tool.path}.function")
    reject_unknown(function, known=("name", "description", "parameters", "strict"))
    name = function.string("name", "")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{function.path}.name must be 1 to 64 letters, digits, _ or -, got {name[:80]!r}",
            param=f"{function.path}.name",
        )
    function.string("description", "")
    definition = {"type": "function", "function": {key: function.get(key) for key in function if key != "strict"}}
    check_plain(definition, param=tool.path)
    return Tool(
        name=name,
        parameters=function.mapping("parameters") or _NO_PARAMETERS,
        strict=function.boolean("strict", False),
        definition=definition,
    )


def _named(choice: Any, tools: Sequence[Tool]) -> Tool:
    fields = Fields(choice, path="tool_choice") if isinstance(choice, Mapping) else None
    if fields is None or fields.get("type") != "function":
        raise InvalidRequest(
            "tool_choice must be none, auto, required or {'type': 'function', 'function': {'name': ...}}, "
            f"got {kind_of(choice)}",
            param="tool_choice",
        )
    reject_unknown(fields, known=("type", "function"))
    function = Fields(fields.get("function"), path="tool_choice.function")
    reject_unknown(function, known=("name",))
    name = function.string("name", "")
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        raise InvalidRequest(f"tool_choice must name one of the tools, got {name[:80]!r}", param="tool_choice")
    return tool


def _tag(tool: Tool, form: CallForm, *, by_schema: bool) -> dict[str, Any]:
    begin, end = form.around_arguments(tool.name)
    schema = tool.parameters if by_schema else {"type": "object"}
    return {"type": "tag", "begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": end}
