"""Prompts with answers that were made elsewhere become the rows that training reads."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from control.workflows.datasets.answer_passes import answered_rows
from control.workflows.prompt_files.child import FileRefused
from control.workflows.prompt_files.lines import MAX_LINE_BYTES

USER, REPLY = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def choice(reason: Any = "stop", **values: Any) -> dict[str, Any]:
    return {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": reason, "message": REPLY, **values}]}


def read(content: bytes, folder: Path) -> list[Any]:
    path = folder / "answers"
    answered_rows(BytesIO(content), path=str(path))
    return [json.loads(line) if line else None for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("row", "url", "body", "answer"),
    [
        ({"messages": [USER, REPLY]}, CHAT, {"messages": [USER]}, {"message": REPLY, "finish_reason": "stop"}),
        (
            {"messages": [USER, REPLY, USER, CALL], "tools": [TOOL]},
            CHAT,
            {"messages": [USER, REPLY, USER], "tools": [TOOL]},
            {"message": CALL, "finish_reason": "stop"},
        ),
        ({"prompt": "a", "completion": "b"}, COMPLETION, {"prompt": "a"}, {"text": "b", "finish_reason": "stop"}),
        (
            {
                "body": {"messages": [USER], "temperature": 0},
                "response": {"status_code": 200, "body": choice("length")},
            },
            CHAT,
            {"messages": [USER], "temperature": 0},
            {"message": REPLY, "finish_reason": "length"},
        ),
        (
            {"request": {"messages": [USER]}, "response": choice(message={**REPLY, "refusal": None, "logprobs": 1})},
            CHAT,
            {"messages": [USER]},
            {"message": REPLY, "finish_reason": "stop"},
        ),
        (
            {
                "body": {
                    "model": "other",
                    "messages": [USER],
                    "stream": True,
                    "stream_options": {},
                    "return_acceptance": True,
                },
                "response": choice(),
            },
            CHAT,
            {"messages": [USER]},
            {"message": REPLY, "finish_reason": "stop"},
        ),
        (
            {"body": {"prompt": "a"}, "response": choice(text="b")},
            COMPLETION,
            {"prompt": "a"},
            {"text": "b", "finish_reason": "stop"},
        ),
    ],
)
def test_each_format_of_a_log_is_read(
    row: dict[str, Any], url: str, body: dict[str, Any], answer: dict[str, Any], tmp_path: Path
) -> None:
    content = b"\n" + json.dumps(row).encode() + b"\n" + json.dumps({**row, "custom_id": 7}).encode()
    blank, first, second = read(content, tmp_path)
    assert blank is None  # so line numbers stay those of the customer's file
    assert first == {"custom_id": "row-2", "url": url, "body": body, "answer": answer}
    assert second["custom_id"] == "7"


def test_a_long_row_of_any_alphabet_stays_within_the_limit_for_a_line(tmp_path: Path) -> None:
    row = {"messages": [USER, {"role": "assistant", "content": "é" * (MAX_LINE_BYTES // 2 - 200)}]}
    path = tmp_path / "answers"

    answered_rows(BytesIO(json.dumps(row, ensure_ascii=False).encode()), path=str(path))

    assert path.stat().st_size <= MAX_LINE_BYTES


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"messages": [USER]}, "missing_answer"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, "missing_answer"),
        ({"messages": [REPLY]}, "missing_prompt"),
        ({"messages": [{"role": "robot", "content": "a"}, REPLY]}, "invalid_body"),
        ({"prompt": "a"}, "missing_answer"),
        ({"prompt": "a", "completion": ""}, "missing_answer"),
        ({"prompt": [1, 2], "completion": "b"}, "unsupported_content"),
        ({"custom_id": "a", "response": {"status_code": 200, "body": choice()}}, "missing_prompt"),
        ({"body": {"messages": [USER]}}, "missing_answer"),
        ({"body": {"messages": [USER]}, "response": {"status_code": 500, "body": {}}}, "missing_answer"),
        ({"body": {"messages": [USER]}, "response": {"choices": []}}, "missing_answer"),
        ({"body": {"messages": [USER]}, "response": choice("content_filter")}, "missing_answer"),
        ({"body": {"messages": [USER]}, "response": choice({"a": 1})}, "missing_answer"),
        ({"body": {"messages": [USER]}, "response": choice(message=3)}, "missing_answer"),
        ({"text": "a"}, "unknown_format"),
        ({"custom_id": "same", "messages": [USER, REPLY]}, "duplicate_custom_id"),
    ],
)
def test_a_row_without_an_answer_has_its_own_error_with_its_line(
    row: dict[str, Any], code: str, tmp_path: Path
) -> None:
    good = {"custom_id": "same", "messages": [USER, REPLY]}
    with pytest.raises(FileRefused, match="line 2: ") as refusal:
        read(json.dumps(good).encode() + b"\n" + json.dumps(row).encode(), tmp_path)
    assert refusal.value.code == code


@pytest.mark.parametrize(
    ("content", "code"), [(b"", "empty_file"), (b"\n\n", "empty_file"), (b"{", "invalid_json_line")]
)
def test_files_without_rows_are_refused(content: bytes, code: str, tmp_path: Path) -> None:
    with pytest.raises(FileRefused) as refusal:
        read(content, tmp_path)
    assert refusal.value.code == code
