"""Finds tool calls in the streamed text of an answer. Text is settled when no later text can change how it is read.

    text ─ find the beginning of a call ─ read its JSON object ─ return its name, then its arguments incrementally

Arguments are returned as the model wrote them. An invalid call, with broken JSON or an unknown tool, is returned as
text.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from engine.openai.call_reader import CallReader, State

_SPACE = " \t\r\n"
_BEGIN, _END = "<tool_call>", "</tool_call>"


class CallForm(StrEnum):
    """The format in which a model writes tool calls; the values are the names of vLLM's parsers."""

    HERMES = "hermes"  # <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>; Qwen models use this format too
    LLAMA3_JSON = "llama3_json"  # the whole answer is {"name": ..., "parameters": {...}}, or several separated by ;

    @property
    def trigger(self) -> str:
        """The text with which every call begins."""
        return _BEGIN if self is CallForm.HERMES else '{"name": "'

    @property
    def separator(self) -> str | None:
        """The text between two calls; None if only one call is allowed."""
        return "\n" if self is CallForm.HERMES else None

    def around_arguments(self, name: str) -> tuple[str, str]:
        """Returns the text before and the text after the arguments of a call."""
        if self is CallForm.HERMES:
            return f'{_BEGIN}\n{{"name": "{name}", "arguments": ', f"}}\n{_END}"
        return f'{{"name": "{name}", "parameters": ', "}"


def form_of_template(template: str) -> CallForm | None:
    """Returns the call format that a chat template contains; None if the format is unknown."""
    if "<|channel|>" in template:
        return None  # gpt-oss writes calls in channels
    if _BEGIN in template:
        return None if "<function=" in template else CallForm.HERMES  # Qwen3-Coder writes XML inside the same tag
    if re.search(r'"parameters\\?": (\\?"|dictionary)|<\|python_tag\|>', template):
        return CallForm.LLAMA3_JSON
    return None


@dataclass(frozen=True, slots=True)
class CallStyle:
    """The format of calls in an answer and the callable tools."""

    form: CallForm
    names: frozenset[str]  # names of the callable tools


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a call; only its first piece has a `name`."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str  # JSON text; incomplete if the answer was cut off


class CallStream:
    """Reads one answer. `push` takes new text and `finish` ends the answer; both return settled text and calls."""

    def __init__(self, style: CallStyle) -> None:
        self._form = style.form
        self._names = style.names
        self._held = ""  # text that is not settled
        self._raw = ""  # text of the current call, which is returned as text if the call is invalid
        self._reader: CallReader | None = None
        self._closing = False  # a call has ended, and its closing tag has not been read yet
        self._only_calls = True  # no text outside of calls so far
        self.num_calls = 0

    def push(self, text: str) -> list[str | CallPiece]:
        self._held += text
        settled: list[str | CallPiece] = []
        while self._held and (self._open(settled) if self._reader is None else self._read(self._reader, settled)):
            pass
        return settled

    def finish(self) -> list[str | CallPiece]:
        """Ends the answer. An incomplete call still counts as a call if its name was returned."""
        rest = self._held
        if self._reader is not None:
            rest = "" if self._reader.name_taken else self._raw
            self.num_calls += self._reader.name_taken
        self._held, self._reader = "", None
        if self.num_calls and (self._closing or not rest.strip(_SPACE)):
            return []
        return [rest] if rest else []

    def _open(self, settled: list[str | CallPiece]) -> bool:
        """Appends the text before the next call. Returns whether a call begins."""
        if self._closing and not self._close():
            return False
        at, tag = _find_tag(self._held) if self._form is CallForm.HERMES else self._find_object()
        self._append_text(self._held[:at].rstrip(_SPACE) if tag is not None else self._held[:at], settled)
        self._held = self._held[at:]
        if tag is None:
            return False
        self._held = self._held[len(tag) :]
        self._raw = tag
        self._reader = CallReader(self._names)
        return True

    def _close(self) -> bool:
        """Skips a closing tag. Returns False while the tag is incomplete."""
        rest = self._held.lstrip(_SPACE)
        if self._form is CallForm.HERMES and rest != _END and _END.startswith(rest):
            return False
        if self._form is CallForm.HERMES and rest.startswith(_END):
            self._held = rest[len(_END) :]
        self._closing = False
        return True

    def _find_object(self) -> tuple[int, str | None]:
        """Like `_find_tag`, for formats in which the answer consists of calls only, without tags."""
        rest = self._held.lstrip(_SPACE + ";" if self.num_calls else _SPACE)
        if self._only_calls and rest.startswith("{"):
            self._held = rest
            return 0, ""
        # White space alone is held back, because a call may follow; any other text is settled.
        return (0 if self._only_calls and not rest else len(self._held)), None

    def _read(self, reader: CallReader, settled: list[str | CallPiece]) -> bool:
        """Feeds text to the current call. Returns whether the call has ended."""
        used = reader.feed(self._held)
        if not reader.name_taken:
            self._raw += self._held[:used]
        self._held = self._held[used:]
        if (piece := reader.take()) is not None:
            settled.append(CallPiece(self.num_calls, *piece))
        if reader.state is State.READING:
            return False
        self._reader = None
        if reader.name_taken:
            self.num_calls += 1
            self._closing = True
        else:
            self._append_text(self._raw, settled)
        return True

    def _append_text(self, text: str, settled: list[str | CallPiece]) -> None:
        if text:
            self._only_calls = False
            settled.append(text)


def _find_tag(text: str) -> tuple[int, str | None]:
    """Returns the index of the first call and its opening tag.

    If there is no call, returns the length of the text without a partial tag at its end, and None.
    """
    if (at := text.find(_BEGIN)) >= 0:
        return at, _BEGIN
    partial = next((k for k in range(len(_BEGIN) - 1, 0, -1) if text.endswith(_BEGIN[:k])), 0)
    return len(text[: len(text) - partial].rstrip(_SPACE)), None  # space before a call is dropped


def read_calls(style: CallStyle, text: str) -> tuple[str, list[Call]]:
    """Splits a whole answer into its text and its calls."""
    stream = CallStream(style)
    texts: list[str] = []
    calls: list[tuple[str, list[str]]] = []
    for piece in [*stream.push(text), *stream.finish()]:
        if isinstance(piece, str):
            texts.append(piece)
        elif piece.name is not None:
            calls.append((piece.name, [piece.arguments]))
        else:
            calls[-1][1].append(piece.arguments)
    return "".join(texts), [Call(name, "".join(arguments)) for name, arguments in calls]
