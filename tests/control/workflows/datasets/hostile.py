"""Makes rows of a chat file. `ROWS` lists invalid rows, each with a description and the expected error code."""

import json
from typing import Any


def chat(messages: Any = None, **values: Any) -> bytes:
    messages = [{"role": "user", "content": "2+2?"}] if messages is None else messages
    return json.dumps({"messages": messages, **values}).encode()


def chat_with_message(**values: Any) -> bytes:
    """A row whose second message has these values."""
    return chat([{"role": "user", "content": "2+2?"}, values])


GOOD = chat([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}])
JSON, UTF8, BODY = "invalid_json_line", "invalid_utf8", "invalid_body"

ROWS: tuple[tuple[str, bytes, str], ...] = (
    ("no JSON", b"hello", JSON),
    ("a bare number", b"1", JSON),
    ("a bare string", b'"text"', JSON),
    ("null", b"null", JSON),
    ("a list", b"[1, 2]", JSON),
    ("a truncated row", GOOD[:-2], JSON),
    ("a brace after the row", GOOD + b"}", JSON),
    ("two rows in a line", GOOD + b" " + GOOD, JSON),
    ("single quotes", b"{'messages': []}", JSON),
    ("a comma too many", b'{"messages": [],}', JSON),
    ("a comment", b'{"messages": []} // hello', JSON),
    ("NaN", b'{"messages": [], "x": NaN}', JSON),
    ("Infinity", b'{"messages": [], "x": -Infinity}', JSON),
    ("a number of ten thousand digits", b'{"x": ' + b"9" * 10_000 + b"}", JSON),
    ("a control character in a string", b'{"x": "a\tb"}', JSON),
    ("a zero byte", b'{"x": \0}', JSON),
    ("a bad escape", rb'{"x": "\q"}', JSON),
    ("a cut escape", rb'{"x": "\u12"}', JSON),
    ("a key twice", b'{"messages": [], "messages": []}', JSON),
    ("a key twice, deep inside", b'{"messages": [{"role": "user", "content": "a", "role": "user"}]}', JSON),
    ("a hundred levels", b'{"messages": ' + b"[" * 100 + b"]" * 100 + b"}", JSON),
    ("a hundred thousand levels", b"[" * 100_000, JSON),
    ("a hundred thousand objects", b'{"a":' * 100_000, JSON),
    ("Latin-1", '{"messages": "é"}'.encode("latin-1"), UTF8),
    ("an overlong sequence", b'{"messages": "\xc0\xaf"}', UTF8),
    ("UTF-16", '{"messages": []}'.encode("utf-16-le"), JSON),
    ("half a surrogate pair", rb'{"messages": "\ud800"}', UTF8),
    ("half a surrogate pair as bytes", b'{"messages": "\xed\xa0\x80"}', UTF8),
    ("a line over the limit", chat(x="x" * (1 << 20)), "line_too_long"),
    ("no member `messages`", b'{"text": "hello"}', BODY),
    ("null for messages", chat([]).replace(b"[]", b"null"), BODY),
    ("an empty list of messages", chat([]), BODY),
    ("a string for messages", chat("hello"), BODY),
    ("a string for a message", chat(["hello"]), BODY),
    ("no role", chat_with_message(content="hello"), BODY),
    ("an unknown role", chat_with_message(role="root", content="hello"), BODY),
    ("a list for a role", chat_with_message(role=["user"], content="hello"), BODY),
    ("no content", chat_with_message(role="user"), BODY),
    ("a number for content", chat_with_message(role="user", content=1), BODY),
    ("parts without a type", chat_with_message(role="user", content=[{"text": "hello"}]), BODY),
    (
        "an image",
        chat_with_message(role="user", content=[{"type": "image_url", "image_url": "x"}]),
        "unsupported_content",
    ),
    (
        "text that is a number",
        chat_with_message(role="user", content=[{"type": "text", "text": 1}]),
        "unsupported_content",
    ),
    ("nothing but an answer", chat([{"role": "assistant", "content": "4"}]), "missing_prompt"),
    ("an id that is a list", chat(custom_id=[1]), "invalid_custom_id"),
    ("an id that is too long", chat(custom_id="x" * 257), "invalid_custom_id"),
    ("a row in another format", b'{"prompt": "2+2?"}', "mixed_formats"),
)
