"""Reads labelled chats and tokenizes them with the model's chat template, exactly as the engine tokenizes requests.

    {"messages": [..., {"role": "assistant", "content": "the label"}], "tools": [...]}

The last message of a row is its label. The prompt is what the engine renders for a request with the other messages. The
answer is the rest of the text that the template renders for all messages, up to the first end-of-sequence token, which
the model therefore learns to predict. Only the answer's tokens have a loss.
"""

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.fields import Fields, InvalidRequest
from engine.openai.default_tools import template_has_tools, with_tools_as_text
from engine.openai.messages import mention_tools, parse_messages
from engine.openai.tools import parse_tools
from engine.tokenizer import ChatTemplateError, Tokenizer
from workers.failures import InvalidInputError
from workers.hyperparameters.lora import CUT


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """A prompt of `num_prompt` tokens, followed by its answer."""

    tokens: "array[int]"
    num_prompt: int

    @property
    def num_labels(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRows:
    rows: tuple[LabelledRow, ...]  # in the order of the file
    num_cut: int  # rows whose answers were cut off at the limit
    sha256: str  # of the file

    @property
    def num_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)

    @property
    def num_labels(self) -> int:
        return sum(row.num_labels for row in self.rows)


def read_labelled_rows(path: Path, tokenizer: Tokenizer, *, name: str, max_tokens: int, long_rows: str) -> LabelledRows:
    """Reads all rows of a file.

    Args:
        name: the name of the file in error messages.
        max_tokens: limit for the tokens of a row.
        long_rows: what happens with longer rows, see `LoraHyperparameters`.

    Raises: InvalidInputError: a line is no labelled chat, is too long, or does not fit the model's chat template; or
        the file has no rows. The message names the line.
    """
    digest, rows, num_cut = hashlib.sha256(), [], 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            digest.update(line)
            if not line.strip():
                continue
            try:
                row = _tokenized(_parsed(line), tokenizer)
                is_cut = len(row.tokens) > max_tokens
                rows.append(_cut(row, max_tokens, long_rows) if is_cut else row)
            except _BadRow as error:
                raise InvalidInputError(error.code, f"{name}: line {number}: {error}") from error
            num_cut += is_cut
    if not rows:
        raise InvalidInputError("empty_file", f"{name}: the file has no rows")
    return LabelledRows(rows=tuple(rows), num_cut=num_cut, sha256=digest.hexdigest())


class _BadRow(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _parsed(line: bytes) -> dict[str, Any]:
    """Returns the row without the weights of its messages, which are for trainers and not for templates."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadRow("invalid_json_line", "this line is not JSON") from error
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        message = "a row must be an object whose `messages` is a list of one or more objects"
        raise _BadRow("missing_messages", message)
    label = messages[-1]
    if label.get("role") != "assistant" or not (label.get("content") or label.get("tool_calls")):
        raise _BadRow("missing_label", "the last message must be the label: an assistant's message that is not empty")
    if label.get("weight") == 0:
        raise _BadRow("missing_label", "the last message is the label, so its weight cannot be 0")
    if len(messages) < 2:
        raise _BadRow("missing_prompt", "messages must have a message before the answer")
    return {**row, "messages": [{name: m[name] for name in m if name != "weight"} for m in messages]}


def _tokenized(row: dict[str, Any], tokenizer: Tokenizer) -> LabelledRow:
    try:
        messages, use = parse_messages(Fields(row)), parse_tools(Fields(row))
    except InvalidRequest as error:
        raise _BadRow(error.code, error.message) from error
    for position, message in enumerate(messages):
        _check_plain(message["content"], f"messages[{position}].content", tokenizer)
    tools: Sequence[Mapping[str, Any]] | None = [tool.definition for tool in use.tools] if use else None
    if (tools or mention_tools(messages)) and not template_has_tools(tokenizer):
        messages, tools = with_tools_as_text(messages, tools or ()), None
    try:
        prompt = tokenizer.render_chat(messages[:-1], tools=tools)
        whole = tokenizer.render_chat(messages, tools=tools, add_generation_prompt=False)
    except ChatTemplateError as error:
        raise _BadRow("chat_template", str(error)) from error
    if not whole.startswith(prompt):
        text = "the model's chat template does not render the answer as a continuation of the prompt"
        raise _BadRow("chat_template", text)
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    answer_ids = tokenizer.encode(whole[len(prompt) :], add_special_tokens=False)
    end = next((i for i, token in enumerate(answer_ids) if token in tokenizer.eos_token_ids), None)
    if end is None:
        raise _BadRow("chat_template", "the model's chat template does not end an answer with an end-of-sequence token")
    return LabelledRow(array("i", [*prompt_ids, *answer_ids[: end + 1]]), len(prompt_ids))


def _check_plain(content: str, name: str, tokenizer: Tokenizer) -> None:
    """Raises: _BadRow: the content has special tokens, for example because a chat template was applied to it before."""
    special = [i for i in tokenizer.encode(content, add_special_tokens=False) if tokenizer.is_special(i)]
    if special:
        token = tokenizer.decode(special[:1], skip_special_tokens=False)
        text = f"{name} has the special token {token}, which only the model's chat template may add; give plain text"
        raise _BadRow("special_token", text)


def _cut(row: LabelledRow, max_tokens: int, long_rows: str) -> LabelledRow:
    if long_rows != CUT:
        message = f"the row has {len(row.tokens):,} tokens, and at most {max_tokens:,} are allowed"
        raise _BadRow("row_too_long", f"{message}; raise max_row_tokens, or choose long_rows 'cut'")
    if row.num_prompt >= max_tokens:
        message = f"the prompt has {row.num_prompt:,} tokens, so no label is left within {max_tokens:,}"
        raise _BadRow("row_too_long", message)
    return LabelledRow(row.tokens[:max_tokens], row.num_prompt)
