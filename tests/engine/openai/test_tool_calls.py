"""Tool calls are found in each format, however the text is split into pieces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.openai.tool_calls import Call, CallForm, CallPiece, CallStream, CallStyle, form_of_template, read_calls

HERMES = CallStyle(CallForm.HERMES, frozenset({"f", "get_weather"}))
LLAMA = CallStyle(CallForm.LLAMA3_JSON, frozenset({"f", "get_weather"}))

ARGUMENTS = '{"city": "Paris", "deep": {"a": ["}", "\\""]}}'
WEATHER = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
CALL = Call("get_weather", ARGUMENTS)


@pytest.mark.parametrize(
    ("text", "remaining_text", "calls"),
    [
        ("Hello, <b>you</b>", "Hello, <b>you</b>", []),
        ("2 < 3 ", "2 < 3 ", []),
        (WEATHER, "", [CALL]),
        (f"Let me look.\n{WEATHER}", "Let me look.", [CALL]),
        (f"{WEATHER}\n{WEATHER}\n", "", [CALL, CALL]),
        (f"{WEATHER} Done.", " Done.", [CALL]),
        (WEATHER.replace("\n", ""), "", [CALL]),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [Call("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [Call("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [Call("f", "null")]),
        ('<tool_call>{"name": "f", "id": [1, {"name": "g"}], "arguments": {}}', "", [Call("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"a": "cut', "", [Call("f", '{"a": "cut')]),  # cut off by max_tokens
        ('<tool_call>{"name": "f', '<tool_call>{"name": "f', []),
        ("<tool_call>no object</tool_call>", "<tool_call>no object</tool_call>", []),
        ('<tool_call>{"name": "nobody", "arguments": {}}', '<tool_call>{"name": "nobody", "arguments": {}}', []),
        ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
        ("<tool_call>{]</tool_call>", "<tool_call>{]</tool_call>", []),
        (f"<tool_call>oh {WEATHER}", "<tool_call>oh", [CALL]),
        ("ends in <tool_", "ends in <tool_", []),
    ],
)
def test_calls_in_hermes_format_are_found(text: str, remaining_text: str, calls: list[Call]) -> None:
    assert read_calls(HERMES, text) == (remaining_text, calls)


@pytest.mark.parametrize(
    ("text", "remaining_text", "calls"),
    [
        ("Hello", "Hello", []),
        (f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}', "", [CALL]),
        ('\n {"name": "f", "parameters": {}}', "", [Call("f", "{}")]),
        ('{"name": "f", "parameters": {}}; {"name": "f"}', "", [Call("f", "{}"), Call("f", "{}")]),
        ('{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
        ('{"a": 1}', '{"a": 1}', []),
        ('Like {"name": "f", "parameters": {}}', 'Like {"name": "f", "parameters": {}}', []),
        ("  ", "  ", []),
    ],
)
def test_calls_in_llamas_json_format_are_found(text: str, remaining_text: str, calls: list[Call]) -> None:
    assert read_calls(LLAMA, text) == (remaining_text, calls)


PARTS = [WEATHER, "<tool_call>", "</tool_call>", '{"name": "f", ', '"arguments": {"a": ', "1}}", *' \n<;"\\', "hi"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


@settings(deadline=None)
@given(TEXTS, st.lists(st.integers(1, 9), min_size=80, max_size=80), st.sampled_from([HERMES, LLAMA]))
def test_streamed_text_gives_the_same_calls_as_the_whole_text(text: str, sizes: list[int], style: CallStyle) -> None:
    stream, start = CallStream(style), 0
    outputs: list[str | CallPiece] = []
    for size in sizes:
        outputs += stream.push(text[start : start + size])
        start += size
    outputs += [*stream.push(text[start:]), *stream.finish()]

    remaining_text, calls = read_calls(style, text)
    pieces = [piece for piece in outputs if isinstance(piece, CallPiece)]
    assert "".join(piece for piece in outputs if isinstance(piece, str)) == remaining_text
    assert [piece.name for piece in pieces if piece.name is not None] == [call.name for call in calls]
    for index, call in enumerate(calls):
        assert "".join(piece.arguments for piece in pieces if piece.index == index) == call.arguments
    assert stream.num_calls == len(calls)


VALUES = st.none() | st.text(max_size=5) | st.integers() | st.lists(st.text(max_size=3), max_size=3)


@settings(deadline=None)
@given(
    st.dictionaries(st.text(max_size=5), VALUES | st.dictionaries(st.text(max_size=3), VALUES, max_size=2), max_size=4)
)
def test_arguments_are_returned_exactly_as_the_model_wrote_them(arguments: dict[str, object]) -> None:
    text = json.dumps(arguments)

    remaining_text, calls = read_calls(HERMES, f'<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>')

    assert (remaining_text, calls) == ("", [Call("f", text)])


def test_parts_of_a_call_are_returned_before_the_call_is_complete() -> None:
    stream = CallStream(HERMES)

    assert stream.push('<tool_call>{"name": "f", "arg') == [CallPiece(0, "f", "")]
    assert stream.push('uments": {"a": "lo') == [CallPiece(0, None, '{"a": "lo')]
    assert stream.push('ng"}}') == [CallPiece(0, None, 'ng"}')]
    assert stream.push("</tool_call>") == stream.finish() == []


QWEN = '{{ \'<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>\' }}'
QWEN_CODER = "{{ '<tool_call>\\n<function=example>\\n</function>\\n</tool_call>' }}"
LLAMA_31 = '{{- \'in the format {"name": function name, "parameters": dictionary of argument name\' }}'
LLAMA_32 = "{{- '{\"name\": \"' + tool_call.name + '\", ' }}{{- '\"parameters\": ' }}{{ '<|python_tag|>' }}"


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (QWEN, CallForm.HERMES),
        (QWEN_CODER, None),
        (LLAMA_31, CallForm.LLAMA3_JSON),
        (LLAMA_32, CallForm.LLAMA3_JSON),
        ("{{ '[TOOL_CALLS]' }}", None),
    ],
)
def test_the_call_format_is_recognized_from_the_chat_template(template: str, form: CallForm | None) -> None:
    assert form_of_template(template) is form
