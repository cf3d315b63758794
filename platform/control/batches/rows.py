"""One line of a batch input file: what it must say, and the normalised row that workers read.

Three forms are taken: OpenAI's (custom_id, method, url, body), Predibase's (the same, body.model may be "", which
means the batch's model) and Fireworks' (custom_id and body alone).
"""

import json
from dataclasses import dataclass
from typing import Any, NoReturn

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
MAX_CUSTOM_ID_LENGTH = 256
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SHOWN = 60  # characters of a customer's value that an error message repeats


class RowError(ValueError):
    """A line that cannot become a row. `code` is permanent, `param` the path of the field at fault."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Row:
    custom_id: str
    is_id_coerced: bool  # it was a number
    model: str  # as written: "" means the batch's
    body: dict[str, Any]


def parse_row(line: bytes, *, endpoint: str) -> Row:
    """Raises: RowError."""
    row = _object(line)
    custom_id, is_coerced = _custom_id(row)
    method = row.get("method", "POST")
    if method != "POST":
        raise RowError("invalid_method", f"method must be 'POST', got {_show(method)}", "method")
    url = row.get("url", endpoint)
    if url != endpoint:
        raise RowError("url_mismatch", f"url must be the batch's endpoint {endpoint!r}, got {_show(url)}", "url")
    if "body" not in row:
        raise RowError("invalid_body", "body is missing", "body")
    body = row["body"]
    if not isinstance(body, dict):
        raise RowError("invalid_body", f"body must be an object, got {_kind(body)}", "body")
    model = body.get("model", "")
    if model is None:
        model = ""
    if not isinstance(model, str):
        raise RowError("invalid_body", f"body.model must be a string, got {_kind(model)}", "body.model")
    _check_body(body, endpoint)
    return Row(custom_id=custom_id, is_id_coerced=is_coerced, model=model, body=body)


def normalised_line(row: Row, *, url: str, model: str) -> bytes:
    """What workers read: {"custom_id", "url", "body"}, plain ASCII, one line."""
    values = {"custom_id": row.custom_id, "url": url, "body": {**row.body, "model": model}}
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"This line is not valid UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}"
        raise RowError("invalid_utf8", message) from None
    try:
        row = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
        if "\\u" in text:  # only an escape can bring in half a surrogate pair, which is no text at all
            json.dumps(row, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        message = f"This line is not parseable as valid JSON: {error.msg} at column {error.colno}"
        raise RowError("invalid_json_line", message) from None
    except UnicodeEncodeError:
        raise RowError("invalid_utf8", "This line holds half a surrogate pair (\\ud800 to \\udfff)") from None
    except (ValueError, RecursionError) as error:  # Python's limits: digits of a number, depth
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RowError("invalid_json_line", f"This line is not parseable as valid JSON: {reason}") from None
    if not isinstance(row, dict):
        raise RowError("invalid_json_line", f"A line must be a JSON object, got {_kind(row)}")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {_show(twice)} appears twice in one object")
    return values


def _custom_id(row: dict[str, Any]) -> tuple[str, bool]:
    if "custom_id" not in row:
        raise RowError("missing_custom_id", "custom_id is missing", "custom_id")
    value = row["custom_id"]
    is_number = isinstance(value, int) and not isinstance(value, bool)
    text = str(value) if is_number else value
    if not isinstance(text, str):
        raise RowError("invalid_custom_id", f"custom_id must be a string, got {_kind(value)}", "custom_id")
    if not 1 <= len(text) <= MAX_CUSTOM_ID_LENGTH:
        message = f"custom_id must have 1 to {MAX_CUSTOM_ID_LENGTH} characters, got {len(text)}"
        raise RowError("invalid_custom_id", message, "custom_id")
    return text, is_number


def _check_body(body: dict[str, Any], endpoint: str) -> None:
    """What can be told without the model; the worker checks the rest, whose errors then stand in the error file."""
    if body.get("stream"):
        raise RowError("invalid_body", "body.stream: a batch cannot stream", "body.stream")
    if endpoint == "/v1/chat/completions":
        _check_messages(body)
    elif not isinstance(body.get("prompt"), (str, list)) or not body["prompt"]:
        raise RowError("invalid_body", "body.prompt must be a string or a list, and not empty", "body.prompt")


def _check_messages(body: dict[str, Any]) -> None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        got = "nothing" if "messages" not in body else "an empty list" if messages == [] else _kind(messages)
        raise RowError("invalid_body", f"body.messages must be a list of messages, got {got}", "body.messages")
    for position, message in enumerate(messages):
        param = f"body.messages[{position}]"
        if not isinstance(message, dict):
            raise RowError("invalid_body", f"{param} must be an object, got {_kind(message)}", param)
        if message.get("role") not in ROLES:
            raise RowError(
                "invalid_body",
                f"{param}.role must be one of {', '.join(ROLES)}, got {_show(message.get('role'))}",
                f"{param}.role",
            )
        _check_content(message, param)


def _check_content(message: dict[str, Any], param: str) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    if content is None and message["role"] == "assistant" and (message.get("tool_calls") or "function_call" in message):
        return
    param = f"{param}.content"
    if not isinstance(content, list) or not content:
        got = "nothing" if content is None else _kind(content)
        raise RowError("invalid_body", f"{param} must be a string or a list of parts, got {got}", param)
    for position, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise RowError("invalid_body", f"{param}[{position}] must be an object with a type", f"{param}[{position}]")


def _show(value: object) -> str:
    text = ascii(value)  # escapes what a terminal, a log or a database would trip over
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _kind(value: object) -> str:
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
