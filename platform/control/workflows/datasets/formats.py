"""The three formats of a row. A row of any format is read into an `Example`: a prompt, and the answer if it has one.

batch    {"custom_id", "body": {"messages" | "prompt", ...}}   batch rows of OpenAI, Predibase and Fireworks
chat     {"messages": [...]}                                   fine-tuning rows of OpenAI, with or without an answer
prompt   {"prompt": "...", "completion": "..."}                rows of Predibase; the completion may be missing

All rows of a file must have the format of the first row that can be read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from control.workflows.prompt_files.rows import ENDPOINTS, RowError, check_messages, kind_of, read_custom_id, read_row

CHAT, COMPLETIONS = ENDPOINTS


class Format(StrEnum):
    BATCH = "batch"
    CHAT = "chat"
    PROMPT = "prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    custom_id: str | None  # None: the row has no id
    endpoint: str
    body: Mapping[str, Any]  # body of the request that asks a model to answer the prompt
    answer: str | None  # None: the row has no answer
    calls_tools: bool = False  # whether the answer has tool calls

    @property
    def messages(self) -> Sequence[Mapping[str, Any]] | None:
        """None if the row has a prompt instead of messages."""
        messages: Sequence[Mapping[str, Any]] | None = self.body["messages"] if self.endpoint == CHAT else None
        return messages

    @property
    def prompt(self) -> str:
        """Empty if the row has messages, or if its prompt consists of token ids."""
        prompt = self.body.get("prompt")
        return prompt if self.endpoint == COMPLETIONS and isinstance(prompt, str) else ""


def format_of(row: Mapping[str, Any]) -> Format:
    """Recognizes the format by the members of a row. Raises: RowError."""
    for member, form in (("body", Format.BATCH), ("messages", Format.CHAT), ("prompt", Format.PROMPT)):
        if member in row:
            return form
    raise RowError("unknown_format", "A row must have `messages`, `prompt`, or `custom_id` and `body`")


def read_example(row: Mapping[str, Any], form: Format) -> Example:
    """Checks a row of this format and reads it. Raises: RowError."""
    match form:
        case Format.BATCH:
            return _batch(row)
        case Format.CHAT:
            return _chat(row)
        case Format.PROMPT:
            return _prompt(row)


def _batch(row: Mapping[str, Any]) -> Example:
    url = row.get("url")
    endpoint = COMPLETIONS if url == COMPLETIONS else CHAT
    checked = read_row(row, endpoint=endpoint)
    if endpoint == CHAT:
        _check_text_only(checked.body["messages"], "body.")
    return Example(custom_id=checked.custom_id, endpoint=endpoint, body=checked.body, answer=None)


def _chat(row: Mapping[str, Any]) -> Example:
    check_messages(row)
    messages = row["messages"]
    _check_text_only(messages, "")
    answer, calls_tools = None, False
    if messages[-1]["role"] == "assistant":
        answer, calls_tools = _text(messages[-1].get("content")), bool(messages[-1].get("tool_calls"))
        messages = messages[:-1]
    if not messages:
        raise RowError("missing_prompt", "messages must have a message before the answer", "messages")
    return Example(
        custom_id=_optional_id(row), endpoint=CHAT, body={"messages": messages}, answer=answer, calls_tools=calls_tools
    )


def _prompt(row: Mapping[str, Any]) -> Example:
    prompt, answer = row.get("prompt"), row.get("completion")
    if not isinstance(prompt, str) or not prompt:
        raise RowError("missing_prompt", f"prompt must be a string and not empty, got {kind_of(prompt)}", "prompt")
    if answer is not None and not isinstance(answer, str):
        raise RowError("invalid_completion", f"completion must be a string, got {kind_of(answer)}", "completion")
    return Example(custom_id=_optional_id(row), endpoint=COMPLETIONS, body={"prompt": prompt}, answer=answer)


def _optional_id(row: Mapping[str, Any]) -> str | None:
    return read_custom_id(row)[0] if "custom_id" in row else None


def _check_text_only(messages: Sequence[Mapping[str, Any]], prefix: str) -> None:
    for position, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] != "text" or not isinstance(part.get("text"), str):
                param = f"{prefix}messages[{position}].content[{number}]"
                raise RowError("unsupported_content", f"{param}: only text is supported", param)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())
