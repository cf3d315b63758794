"""A request's tools are parsed into the input of the chat template and a grammar for calls."""

import json
from typing import Any

import pytest

from engine.fields import InvalidRequest
from engine.grammars.grammar import GrammarKind
from engine.openai.requests import ParsedRequest, parse_chat
from engine.openai.tool_calls import CallForm
from engine.tokenizer import Tokenizer
from tests.engine.openai.tool_model import CITY, answer_with_call, make_tool_model, tool
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tool_model(tmp_path_factory.mktemp("model")))


def chat(tokenizer: Tokenizer, *, call_form: CallForm | None = None, **body: Any) -> ParsedRequest:
    body = {"messages": [{"role": "user", "content": "hi"}]} | body
    return parse_chat(body, tokenizer=tokenizer, max_seq_len=2000, call_form=call_form)


def prompt(tokenizer: Tokenizer, parsed: ParsedRequest) -> str:
    return tokenizer.decode(parsed.prompt_token_ids)


def structure(parsed: ParsedRequest) -> dict[str, Any]:
    """Returns the format of the structural tag that constrains the answer."""
    grammar = parsed.sampling.grammar
    assert grammar is not None
    assert grammar.kind is GrammarKind.STRUCTURAL_TAG
    structure_format = json.loads(grammar.source)["format"]
    assert isinstance(structure_format, dict)
    return structure_format


def test_the_prompt_contains_the_tool_definitions(tokenizer: Tokenizer) -> None:
    parsed = chat(tokenizer, tools=[tool("get_weather", strict=True)])

    definitions = json.loads(prompt(tokenizer, parsed).splitlines()[0])
    assert definitions == [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
    assert parsed.calls is not None
    assert (parsed.calls.form, parsed.calls.names) == (CallForm.HERMES, frozenset({"get_weather"}))


def test_with_tool_choice_auto_the_answer_is_not_constrained(tokenizer: Tokenizer) -> None:
    for choice in (None, "auto"):
        parsed = chat(tokenizer, tools=[tool("f")], tool_choice=choice)
        assert parsed.sampling.grammar is None
        assert parsed.calls is not None


def test_tool_choice_none_removes_the_tools_from_the_prompt(tokenizer: Tokenizer) -> None:
    parsed = chat(tokenizer, tools=[tool("f")], tool_choice="none")

    assert parsed.calls is None
    assert parsed.prompts == chat(tokenizer).prompts


def test_tool_choice_required_constrains_the_answer_to_calls_that_match_a_schema(tokenizer: Tokenizer) -> None:
    structure_format = structure(chat(tokenizer, tools=[tool("f"), tool("g")], tool_choice="required"))

    assert (structure_format["type"], structure_format["at_least_one"], structure_format["separator"]) == (
        "tags_with_separator",
        True,
        "\n",
    )
    assert [tag["begin"] for tag in structure_format["tags"]] == [
        f'<tool_call>\n{{"name": "{name}", "arguments": ' for name in ("f", "g")
    ]
    assert {tag["end"] for tag in structure_format["tags"]} == {"}\n</tool_call>"}
    assert all(tag["content"] == {"type": "json_schema", "json_schema": CITY} for tag in structure_format["tags"])


def test_a_named_tool_choice_constrains_the_answer_to_one_call_of_this_function(tokenizer: Tokenizer) -> None:
    choice = {"type": "function", "function": {"name": "g"}}

    parsed = chat(tokenizer, tools=[tool("f"), tool("g")], tool_choice=choice)

    structure_format = structure(parsed)
    assert ['"g"' in tag["begin"] for tag in structure_format["tags"]] == [True]
    assert (structure_format["at_least_one"], structure_format["stop_after_first"]) == (True, True)
    assert '"name": "f"' in prompt(tokenizer, parsed)  # the prompt still has the other tools


def test_parallel_tool_calls_false_limits_the_answer_to_one_call(tokenizer: Tokenizer) -> None:
    auto = structure(chat(tokenizer, tools=[tool("f")], parallel_tool_calls=False))
    required = structure(chat(tokenizer, tools=[tool("f")], parallel_tool_calls=False, tool_choice="required"))

    assert (auto["type"], auto["at_least_one"], auto["stop_after_first"]) == ("triggered_tags", False, True)
    assert auto["tags"][0]["content"]["json_schema"] == {"type": "object"}  # any object, because the tool is not strict
    assert (required["at_least_one"], required["stop_after_first"]) == (True, True)


def test_calls_of_strict_tools_match_the_schema_and_are_optional(tokenizer: Tokenizer) -> None:
    structure_format = structure(chat(tokenizer, tools=[tool("f", strict=True), tool("g")]))

    assert (structure_format["triggers"], structure_format["at_least_one"], structure_format["stop_after_first"]) == (
        ["<tool_call>"],
        False,
        False,
    )
    assert [tag["content"]["json_schema"] for tag in structure_format["tags"]] == [CITY, {"type": "object"}]


def test_the_call_format_of_the_server_overrides_the_format_of_the_chat_template(tokenizer: Tokenizer) -> None:
    parsed = chat(tokenizer, tools=[tool("f")], tool_choice="required", call_form=CallForm.LLAMA3_JSON)

    structure_format = structure(parsed)
    # Llama's format allows only one call.
    assert (structure_format["triggers"], structure_format["stop_after_first"]) == (['{"name": "'], True)
    assert structure_format["tags"][0]["begin"] == '{"name": "f", "parameters": '


def test_the_prompt_contains_earlier_calls_and_tool_results(tokenizer: Tokenizer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Paris"}'}}
    parsed = chat(
        tokenizer,
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "mild"}]},
        ],
    )

    assert prompt(tokenizer, parsed).splitlines()[1:] == ['assistant:f({"city": "Paris"})', "tool:mild", "assistant:"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Returns a tokenizer whose chat template does not support tools."""
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("plain"), "llama", num_layers=1))


def rendered(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> str:
    return tokenizer.decode(tokenizer.encode_chat(messages))


@pytest.mark.parametrize("call_form", [None, CallForm.LLAMA3_JSON])
def test_if_the_template_does_not_support_tools_the_system_message_describes_the_tools(
    plain: Tokenizer, call_form: CallForm | None
) -> None:
    user = {"role": "user", "content": "hi"}
    tools = [tool("f", description="Größe"), tool("g")]

    alone = chat(plain, tools=tools, call_form=call_form, tool_choice="required")
    beside = chat(plain, tools=tools, messages=[{"role": "system", "content": "Be brief."}, user])

    _, lines = prompt(plain, alone).split("<tools>\n")
    listed, instruction = lines.split("\n</tools>\n")
    assert [json.loads(line) for line in listed.splitlines()] == tools
    block = prompt(plain, alone).removesuffix(rendered(plain, [user]))
    assert "Be brief.\n\nYou may call functions" in prompt(plain, beside)
    assert prompt(plain, alone) == rendered(plain, [{"role": "system", "content": text_of_system(block)}, user])
    assert '<tool_call>\n{"name": FUNCTION' in instruction
    assert alone.calls is not None
    assert alone.calls.form is CallForm.HERMES
    assert structure(alone)["tags"][0]["begin"].startswith("<tool_call>")


def text_of_system(block: str) -> str:
    start = block.index("You may call")
    return block[start : block.index("</tool_call>", block.index("FUNCTION")) + len("</tool_call>")]


def test_if_the_template_does_not_support_tools_calls_and_results_are_text_of_messages(plain: Tokenizer) -> None:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": f'{{"i": {i}}}'}} for i in (1, 2)
    ]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": f"result {i}"} for i in (1, 2)]
    user = {"role": "user", "content": "hi"}

    parsed = chat(
        plain, messages=[user, {"role": "assistant", "content": "Wait.", "tool_calls": calls}, *results, user]
    )

    assert prompt(plain, parsed) == rendered(
        plain,
        [
            user,
            {"role": "assistant", "content": "Wait." + "".join(f"\n{answer_with_call({'i': i}, 'f')}" for i in (1, 2))},
            {
                "role": "user",
                "content": "<tool_response>\nresult 1\n</tool_response>\n<tool_response>\nresult 2\n</tool_response>",
            },
            user,
        ],
    )


def test_tool_choice_none_does_not_change_the_prompt_of_a_template_without_tools(plain: Tokenizer) -> None:
    assert chat(plain, tools=[tool("f")], tool_choice="none").prompts == chat(plain).prompts


DEEP: Any = {}
for _ in range(120):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": [tool("f"), tool("f")]}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [tool("")]}, "tools[0].function.name"),
        ({"tools": [tool('a"b')]}, "tools[0].function.name"),
        ({"tools": [tool("a" * 65)]}, "tools[0].function.name"),
        ({"tools": [tool("f", parameters=5)]}, "tools[0].function.parameters"),
        ({"tools": [tool("f", parameters=DEEP)]}, "tools[0]"),
        ({"tools": [tool("f", parameters={"title": "\ud800"})]}, "tools[0]"),
        ({"tools": [tool("f", strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool("f", extra=1)]}, "tools[0].function.extra"),
        ({"tools": [tool("f", parameters={"title": "x" * 70_000})], "tool_choice": "required"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [tool("f")], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [tool("f")], "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_the_error_for_invalid_tools_names_their_path(tokenizer: Tokenizer, body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(tokenizer, **body)
    assert caught.value.param == param


TOO_DEEP = '{"a":' * 200 + "1" + "}" * 200


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', "{" * 2000, '{"a": "\\ud800"}', TOO_DEEP])
def test_arguments_that_are_no_json_object_are_refused(tokenizer: Tokenizer, arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    with pytest.raises(InvalidRequest) as caught:
        chat(tokenizer, messages=[{"role": "assistant", "tool_calls": [call]}])
    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"
