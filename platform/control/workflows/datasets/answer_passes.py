"""The pass that reads prompts with answers that were made elsewhere. `child` runs it.

    {"messages": [..., {"role": "assistant", ...}]}          a chat, such as a row of OpenAI's fine-tuning
    {"prompt": "...", "completion": "..."}
    {"body": {"messages" | "prompt"}, "response": {...}}     a logged request; "request" may stand in place of "body"

`response` is a completion object, or the member `response` of a line of a batch's output, whose `body` is such an
object.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from control.workflows.prompt_files.child import FileRefused, serve
from control.workflows.prompt_files.lines import Line, Readable, read_lines, without_mark
from control.workflows.prompt_files.rows import (
    ENDPOINTS,
    RowError,
    check_messages,
    content_of,
    kind_of,
    parse_object,
    quoted,
    read_custom_id,
    read_row,
)
from control.workflows.prompt_files.validation import MAX_ROWS

CHAT, COMPLETIONS = ENDPOINTS
_ANSWER_MEMBERS = ("role", "content", "tool_calls", "reasoning_content")
_ENDS = ("stop", "length", "tool_calls")
# Members of a logged request that concern only the service that answered it, such as the name of its model.
_OF_SERVICE = frozenset({"model", "stream", "stream_options", "return_acceptance"})


def answered_rows(source: Readable, *, path: str) -> dict[str, Any]:
    """Writes each row as a row of a batch with `answer`: {"message" | "text", "finish_reason"}. Blank lines stay.

    Raises: FileRefused: a row is bad or has no answer, an id is used twice, or there are too many rows.
    """
    line_of_id: dict[str, int] = {}
    with open(path, "wb") as file:
        for line in read_lines(source):
            try:
                row = _answered_row(line)
                if row is not None:
                    _check_unique(row["custom_id"], line.number, line_of_id)
            except RowError as error:
                raise FileRefused(error.code, f"line {line.number}: {error.message}") from error
            # without escapes, because escaped text of another alphabet could make the line longer than the limit
            text = "" if row is None else json.dumps(row, ensure_ascii=False, separators=(",", ":"))
            file.write(text.encode() + b"\n")
    if not line_of_id:
        raise FileRefused("empty_file", "has no rows")
    return {"num_rows": len(line_of_id)}


def _answered_row(line: Line) -> dict[str, Any] | None:
    """Returns None for a blank line. Raises: RowError."""
    content = content_of(without_mark(line))
    if not content.strip():
        return None
    row = parse_object(content)
    body, answer = _read(row)
    endpoint = CHAT if "messages" in body else COMPLETIONS
    read_row({"custom_id": "row", "body": body}, endpoint=endpoint)  # checks the request
    if endpoint == COMPLETIONS and not isinstance(body["prompt"], str):
        raise RowError("unsupported_content", f"prompt must be a string, got {kind_of(body['prompt'])}", "prompt")
    custom_id = row.get("custom_id")
    identity = f"row-{line.number}" if custom_id is None else read_custom_id(row)[0]
    return {"custom_id": identity, "url": endpoint, "body": body, "answer": answer}


def _read(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the body of a request, and the answer. Raises: RowError."""
    body = row.get("body", row.get("request"))
    if isinstance(body, dict):
        request = {name: value for name, value in body.items() if name not in _OF_SERVICE}
        return request, _of_response(row.get("response"), is_chat="messages" in body)
    if "response" in row:
        message = "a row with `response` must also have the `body` of its request, because a response has no prompt"
        raise RowError("missing_prompt", message, "body")
    if "messages" in row:
        return _of_chat(row)
    if "prompt" in row:
        return {"prompt": row["prompt"]}, {"text": _text(row.get("completion")), "finish_reason": "stop"}
    raise RowError("unknown_format", "a row must have `messages`, `prompt` and `completion`, or `body` and `response`")


def _of_chat(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    check_messages(row)
    *messages, last = row["messages"]
    if last["role"] != "assistant":
        message = f"messages must end with the answer, a message of the assistant, got one of role {last['role']!r}"
        raise RowError("missing_answer", message, "messages")
    if not messages:
        raise RowError("missing_prompt", "messages must have a message before the answer", "messages")
    body = {"messages": messages, **({"tools": row["tools"]} if row.get("tools") else {})}
    return body, {"message": _message(last), "finish_reason": "stop"}


def _of_response(response: Any, *, is_chat: bool) -> dict[str, Any]:
    if isinstance(response, dict) and "status_code" in response:
        if response["status_code"] != 200:
            message = f"the response must have status 200, got {quoted(response['status_code'])}"
            raise RowError("missing_answer", message, "response")
        response = response.get("body")
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise RowError("missing_answer", "the row must have a `response` with `choices`", "response")
    reason = choices[0].get("finish_reason") or "stop"
    if reason not in _ENDS:
        message = f"the answer must have ended with one of {', '.join(_ENDS)}, got {quoted(reason)}"
        raise RowError("missing_answer", message, "response")
    answer = {"message": _message(choices[0].get("message"))} if is_chat else {"text": _text(choices[0].get("text"))}
    return {**answer, "finish_reason": "length" if reason == "length" else "stop"}


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RowError("missing_answer", f"the answer must be a message, got {kind_of(message)}", "message")
    kept = {name: message[name] for name in _ANSWER_MEMBERS if message.get(name) is not None}
    if not kept.get("content") and not kept.get("tool_calls"):
        raise RowError("missing_answer", "the message of the assistant is empty", "messages")
    answer = {**kept, "role": "assistant"}
    check_messages({"messages": [answer]})
    return answer


def _text(text: Any) -> str:
    if not isinstance(text, str) or not text:
        message = f"the completion must be a string and not empty, got {kind_of(text)}"
        raise RowError("missing_answer", message, "completion")
    return text


def _check_unique(custom_id: str, number: int, line_of_id: dict[str, int]) -> None:
    first = line_of_id.setdefault(custom_id, number)
    if first != number:
        message = f"custom_id {custom_id[:80]!a} is already used on line {first}"
        raise RowError("duplicate_custom_id", message, "custom_id")
    if len(line_of_id) > MAX_ROWS:
        raise RowError("too_many_rows", f"a file can have at most {MAX_ROWS:,} rows")


if __name__ == "__main__":
    sys.exit(serve({answered_rows.__name__: answered_rows}))
