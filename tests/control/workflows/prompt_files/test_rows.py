"""Each row of a prompt file is parsed and written in one normal form, or refused with an error."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.workflows.prompt_files.rows import RowError, normalised_line, parse_row
from tests.control.factories import chat_row

CHAT = "/v1/chat/completions"


def error_of(line: bytes | str | dict[str, Any], endpoint: str = CHAT) -> RowError:
    text = json.dumps(line) if isinstance(line, dict) else line
    with pytest.raises(RowError) as refused:
        parse_row(text.encode() if isinstance(text, str) else text, endpoint=endpoint)
    return refused.value


def parse(row: dict[str, Any], endpoint: str = CHAT) -> Any:
    return parse_row(json.dumps(row).encode(), endpoint=endpoint)


def test_rows_in_the_formats_of_openai_predibase_and_fireworks_are_equivalent() -> None:
    openai_row = chat_row("a", model="tiny")
    predibase_row = chat_row("a", model="")
    fireworks_row = {"custom_id": "a", "body": {"messages": openai_row["body"]["messages"]}}

    lines = {normalised_line(parse(row), url=CHAT, model="tiny") for row in (openai_row, predibase_row, fireworks_row)}

    assert [json.loads(line)["body"]["model"] for line in lines] == ["tiny"] * len(lines)
    assert len({json.dumps(json.loads(line), sort_keys=True) for line in lines}) == 1


def test_an_error_message_shows_a_long_value_shortened_and_in_ascii() -> None:
    message = error_of({**chat_row(), "method": "é" * 1_000}).message

    assert len(message) < 120
    assert message.isascii()


def test_a_numeric_custom_id_becomes_a_string_and_is_marked_as_coerced() -> None:
    row = parse({**chat_row(), "custom_id": 7})

    assert (row.custom_id, row.is_id_coerced) == ("7", True)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "nonsense",
        '{"custom_id": "a"} x',
        "[]",
        '"text"',
        "null",
        '{"custom_id": "a", "body": {"temperature": NaN}}',
        '{"custom_id": "a", "body": {"temperature": -Infinity}}',
        '{"custom_id": "a", "custom_id": "b"}',
        '{"custom_id": "a", "body": {"seed": 1, "seed": 2}}',
        '{"custom_id": ' + "[" * 100_000,
        '{"custom_id": "a", "body": {"seed": ' + "9" * 5_000 + "}}",
    ],
)
def test_a_line_that_is_not_a_json_object_has_the_error_invalid_json_line(line: str) -> None:
    assert error_of(line).code == "invalid_json_line"


@pytest.mark.parametrize("line", [b'{"custom_id": "\xff"}', b"\xff\xfe{\x00}\x00", b'{"custom_id": "\\ud800"}'])
def test_a_line_that_is_not_text_has_the_error_invalid_utf8(line: bytes) -> None:
    assert error_of(line).code == "invalid_utf8"


@pytest.mark.parametrize("custom_id", [None, "", True, 1.5, [], {}, "x" * 257, 10**300])
def test_a_custom_id_that_is_not_a_short_string_is_invalid(custom_id: object) -> None:
    error = error_of({**chat_row(), "custom_id": custom_id})

    assert (error.code, error.param) == ("invalid_custom_id", "custom_id")


def test_a_row_without_custom_id_is_an_error() -> None:
    row = chat_row()
    del row["custom_id"]

    assert error_of(row).code == "missing_custom_id"


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"method": "GET"}, "invalid_method", "method"),
        ({"method": None}, "invalid_method", "method"),
        ({"url": "/v1/completions"}, "url_mismatch", "url"),
        ({"url": 3}, "url_mismatch", "url"),
        ({"body": None}, "invalid_body", "body"),
        ({"body": []}, "invalid_body", "body"),
        ({"body": {}}, "invalid_body", "body.messages"),
        ({"body": {"messages": []}}, "invalid_body", "body.messages"),
        ({"body": {"messages": "hi"}}, "invalid_body", "body.messages"),
        ({"body": {"messages": ["hi"]}}, "invalid_body", "body.messages[0]"),
        ({"body": {"messages": [{"content": "hi"}]}}, "invalid_body", "body.messages[0].role"),
        ({"body": {"messages": [{"role": "robot", "content": "hi"}]}}, "invalid_body", "body.messages[0].role"),
        ({"body": {"messages": [{"role": ["user"], "content": "hi"}]}}, "invalid_body", "body.messages[0].role"),
        ({"body": {"messages": [{"role": "user"}]}}, "invalid_body", "body.messages[0].content"),
        ({"body": {"messages": [{"role": "user", "content": 5}]}}, "invalid_body", "body.messages[0].content"),
        ({"body": {"messages": [{"role": "user", "content": ["x"]}]}}, "invalid_body", "body.messages[0].content[0]"),
        ({"body": {**chat_row()["body"], "model": 4}}, "invalid_body", "body.model"),
        ({"body": {**chat_row()["body"], "stream": True}}, "invalid_body", "body.stream"),
    ],
)
def test_the_error_for_an_invalid_field_names_its_path(change: dict[str, Any], code: str, param: str) -> None:
    error = error_of({**chat_row(), **change})

    assert (error.code, error.param) == (code, param)


def test_messages_in_openais_format_are_accepted() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "tool_call_id": "1", "content": ""},
    ]

    assert parse({**chat_row(), "body": {"messages": messages}}).body["messages"] == messages


def test_a_completion_row_needs_a_prompt() -> None:
    row = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}}

    assert parse(row, endpoint="/v1/completions").body == {"prompt": "Once"}
    assert error_of({**row, "body": {}}, endpoint="/v1/completions").param == "body.prompt"


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_parsed_or_refused(line: bytes) -> None:
    try:
        parse_row(line, endpoint=CHAT)
    except RowError as error:
        error.message.encode("ascii")  # every log and every database can store ASCII


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=90),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from(["custom_id", "method", "url", "body", "x"]), JSON)


@given(FIELDS)
def test_an_arbitrary_json_object_is_parsed_or_refused(row: dict[str, Any]) -> None:
    try:
        parse(row)
    except RowError as error:
        error.message.encode("ascii")


@given(st.text(min_size=1, max_size=50).filter(lambda text: text.isprintable()), st.text(max_size=100), FIELDS)
def test_a_normalised_row_keeps_its_id_and_its_body(custom_id: str, content: str, extra: dict[str, Any]) -> None:
    row = chat_row(custom_id, content=content, extra=extra)

    parsed = parse(row)
    line = normalised_line(parsed, url=CHAT, model="tiny")

    assert line.count(b"\n") == 1
    assert json.loads(line) == {"custom_id": custom_id, "url": CHAT, "body": {**row["body"], "model": "tiny"}}
