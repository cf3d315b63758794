"""Checks one line of a batch input file and writes the normalised row that workers read.

Three formats are accepted: OpenAI's (custom_id, method, url, body); Predibase's, which is the same, except that
body.model may be "" (the batch's model); and Fireworks' (only custom_id and body).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from control.workflows.prompt_files.lines import MAX_LINE_BYTES, Line

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
MAX_CUSTOM_ID_LENGTH = 256
MAX_DEPTH = 64
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MAX_QUOTED = 60  # an error message quotes at most this many characters of a customer's value


class RowError(ValueError):
    """A line is not a valid row. `code` is a stable error code, and `param` is the path of the invalid field.

    `column` is set if the line is not valid JSON: the position of the first invalid byte, counted from 1.
    """

    def __init__(self, code: str, message: str, param: str | None = None, *, column: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.column = column


@dataclass(frozen=True, slots=True)
class Row:
    custom_id: str
    is_id_coerced: bool  # the row's custom_id was a number and has been converted to a string
    model: str  # as in the row; "" means the batch's model
    body: dict[str, Any]


def content_of(line: Line, max_line_bytes: int = MAX_LINE_BYTES) -> bytes:
    """Returns the line's content. Args: max_line_bytes: the limit with which the line was read.

    Raises: RowError: the line is longer than the limit.
    """
    if line.content is None:
        message = f"A line must have at most {max_line_bytes:,} bytes, got {line.size_bytes:,}"
        raise RowError("line_too_long", message)
    return line.content


def parse_row(line: bytes, *, endpoint: str) -> Row:
    """Parses and checks a line. Raises: RowError."""
    return read_row(parse_object(line), endpoint=endpoint)


def read_row(row: Mapping[str, Any], *, endpoint: str) -> Row:
    """Checks the parsed line. Raises: RowError."""
    custom_id, is_coerced = read_custom_id(row)
    method = row.get("method", "POST")
    if method != "POST":
        raise RowError("invalid_method", f"method must be 'POST', got {quoted(method)}", "method")
    url = row.get("url", endpoint)
    if url != endpoint:
        raise RowError("url_mismatch", f"url must be the batch's endpoint {endpoint!r}, got {quoted(url)}", "url")
    if "body" not in row:
        raise RowError("invalid_body", "body is missing", "body")
    body = row["body"]
    if not isinstance(body, dict):
        raise RowError("invalid_body", f"body must be an object, got {kind_of(body)}", "body")
    model = body.get("model", "")
    if model is None:
        model = ""
    if not isinstance(model, str):
        raise RowError("invalid_body", f"body.model must be a string, got {kind_of(model)}", "body.model")
    _check_body(body, endpoint)
    return Row(custom_id=custom_id, is_id_coerced=is_coerced, model=model, body=body)


def normalised_line(row: Row, *, url: str, model: str) -> bytes:
    """Returns the row in the format that workers read: {"custom_id", "url", "body"} in ASCII on one line."""
    values = {"custom_id": row.custom_id, "url": url, "body": {**row.body, "model": model}}
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def parse_object(line: bytes) -> dict[str, Any]:
    """Parses a JSON object.

    Raises: RowError: the line is not UTF-8 or no JSON object, has a repeated key, or is nested too deeply.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"This line is not valid UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}"
        raise RowError("invalid_utf8", message, column=error.start + 1) from None
    try:
        row = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
        if "\\u" in text:  # only an escape can produce an unpaired surrogate, which cannot be encoded
            json.dumps(row, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        message = f"This line is not parseable as valid JSON: {error.msg} at column {error.colno}"
        raise RowError("invalid_json_line", message, column=len(text[: error.pos].encode()) + 1) from None
    except UnicodeEncodeError:
        raise RowError("invalid_utf8", "This line contains an unpaired surrogate (\\ud800 to \\udfff)") from None
    except (ValueError, RecursionError) as error:  # raised by the hooks, for a very long number, or for deep nesting
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RowError("invalid_json_line", f"This line is not parseable as valid JSON: {reason}") from None
    if not isinstance(row, dict):
        raise RowError("invalid_json_line", f"A line must be a JSON object, got {kind_of(row)}")
    if _is_deeper(row, MAX_DEPTH):
        raise RowError("invalid_json_line", f"This line is nested more than {MAX_DEPTH} levels deep")
    return row


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether the value is nested more than `depth` levels deep. Visits only objects and lists, so it is fast."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return False
    return depth == 0 or any(_is_deeper(item, depth - 1) for item in value if isinstance(item, (dict, list)))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        # `seen.add` returns None, which is false: only a key that is already in `seen` passes the condition.
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {quoted(repeated)} appears twice in one object")
    return values


def read_custom_id(row: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the row's custom_id as a string, and whether it was a number. Raises: RowError."""
    if "custom_id" not in row:
        raise RowError("missing_custom_id", "custom_id is missing", "custom_id")
    value = row["custom_id"]
    is_number = isinstance(value, int) and not isinstance(value, bool)
    text = str(value) if is_number else value
    if not isinstance(text, str):
        raise RowError("invalid_custom_id", f"custom_id must be a string, got {kind_of(value)}", "custom_id")
    if not 1 <= len(text) <= MAX_CUSTOM_ID_LENGTH:
        message = f"custom_id must have 1 to {MAX_CUSTOM_ID_LENGTH} characters, got {len(text)}"
        raise RowError("invalid_custom_id", message, "custom_id")
    return text, is_number


def _check_body(body: dict[str, Any], endpoint: str) -> None:
    """Checks what can be checked without a model. The worker checks the rest of the body."""
    if body.get("stream"):
        raise RowError("invalid_body", "body.stream must not be true: a batch cannot stream", "body.stream")
    if endpoint == "/v1/chat/completions":
        check_messages(body, "body.")
    elif not isinstance(body.get("prompt"), (str, list)) or not body["prompt"]:
        raise RowError("invalid_body", "body.prompt must be a string or a list, and not empty", "body.prompt")


def check_messages(body: Mapping[str, Any], prefix: str = "") -> None:
    """Checks the messages of a chat. Args: prefix: put before `messages` in the `param` of errors. Raises: RowError."""
    param = f"{prefix}messages"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        got = "nothing" if "messages" not in body else "an empty list" if messages == [] else kind_of(messages)
        raise RowError("invalid_body", f"{param} must be a list of messages, got {got}", param)
    for position, message in enumerate(messages):
        place = f"{param}[{position}]"
        if not isinstance(message, dict):
            raise RowError("invalid_body", f"{place} must be an object, got {kind_of(message)}", place)
        if message.get("role") not in ROLES:
            raise RowError(
                "invalid_body",
                f"{place}.role must be one of {', '.join(ROLES)}, got {quoted(message.get('role'))}",
                f"{place}.role",
            )
        _check_content(message, place)


def _check_content(message: dict[str, Any], param: str) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    if content is None and message["role"] == "assistant" and (message.get("tool_calls") or "function_call" in message):
        return
    param = f"{param}.content"
    if not isinstance(content, list) or not content:
        got = "nothing" if content is None else kind_of(content)
        raise RowError("invalid_body", f"{param} must be a string or a list of parts, got {got}", param)
    for position, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise RowError("invalid_body", f"{param}[{position}] must be an object with a type", f"{param}[{position}]")


def quoted(value: object) -> str:
    text = ascii(value)  # escapes characters that a terminal, a log or a database could not handle
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}..."


def kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
