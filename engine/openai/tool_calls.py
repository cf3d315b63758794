"""Calls of tools in an answer's text: found as the text comes, told apart from what is said beside them.

    text ─ look for where a call begins ─ read its JSON object ─ its name, then its arguments as they come

Arguments are passed on as the model wrote them. What looked like a call and is none, because its JSON is broken or no
tool has that name, is given out as text.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from engine.openai.call_reader import CallReader, State

_SPACE = " \t\r\n"
_BEGIN, _END = "<tool_call>", "</tool_call>"


class CallForm(StrEnum):
    """How a model writes a call; the names are those of vLLM's parsers."""

    HERMES = "hermes"  # <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, also Qwen's
    LLAMA3_JSON = "llama3_json"  # the whole answer is {"name": ..., "parameters": {...}}; several with a ; between

    @property
    def trigger(self) -> str:
        """Every call begins with it."""
        return _BEGIN if self is CallForm.HERMES else '{"name": "'

    @property
    def separator(self) -> str | None:
        """Between two calls; None where a model is held to one."""
        return "\n" if self is CallForm.HERMES else None

    def around_arguments(self, name: str) -> tuple[str, str]:
        """What stands before a call's arguments and after them."""
        if self is CallForm.HERMES:
            return f'{_BEGIN}\n{{"name": "{name}", "arguments": ', f"}}\n{_END}"
        return f'{{"name": "{name}", "parameters": ', "}"


def form_of_template(template: str) -> CallForm | None:
    """The form that a chat template teaches; None for one that is not known here."""
    if _BEGIN in template:
        return None if "<function=" in template else CallForm.HERMES  # Qwen3-Coder has XML inside the same tag
    if re.search(r'"parameters\\?": (\\?"|dictionary)|<\|python_tag\|>', template):
        return CallForm.LLAMA3_JSON
    return None


@dataclass(frozen=True, slots=True)
class CallStyle:
    """What tells the calls in an answer from its text."""

    form: CallForm
    names: frozenset[str]  # of the tools that can be called


@dataclass(frozen=True, slots=True)
class CallPiece:
    """`name` comes with the first piece of a call and with no other."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str  # JSON text; incomplete where the answer was cut off


class CallStream:
    """One answer. `push` its text as it comes, then `finish` once; each returns what is settled, in order."""

    def __init__(self, style: CallStyle) -> None:
        self._form = style.form
        self._names = style.names
        self._held = ""  # text that is not settled
        self._raw = ""  # of the call under way, to be given out if it is none
        self._reader: CallReader | None = None
        self._closing = False  # a call has ended, its closing tag is to come
        self._only_calls = True  # nothing was said so far
        self.num_calls = 0

    def push(self, text: str) -> list[str | CallPiece]:
        self._held += text
        settled: list[str | CallPiece] = []
        while self._held and (self._open(settled) if self._reader is None else self._read(self._reader, settled)):
            pass
        return settled

    def finish(self) -> list[str | CallPiece]:
        """A call that was cut off stays one if its name was given out."""
        rest = self._held
        if self._reader is not None:
            rest = "" if self._reader.told else self._raw
            self.num_calls += self._reader.told
        self._held, self._reader = "", None
        if self.num_calls and (self._closing or not rest.strip(_SPACE)):
            return []
        return [rest] if rest else []

    def _open(self, settled: list[str | CallPiece]) -> bool:
        """Gives out text up to where a call begins. Returns whether one does."""
        if self._closing and not self._close():
            return False
        at, tag = _find_tag(self._held) if self._form is CallForm.HERMES else self._find_object()
        self._say(self._held[:at].rstrip(_SPACE) if tag is not None else self._held[:at], settled)
        self._held = self._held[at:]
        if tag is None:
            return False
        self._held = self._held[len(tag) :]
        self._raw = tag
        self._reader = CallReader(self._names)
        return True

    def _close(self) -> bool:
        """Drops a closing tag. Returns whether it has come, or can't come any more."""
        rest = self._held.lstrip(_SPACE)
        if self._form is CallForm.HERMES and rest != _END and _END.startswith(rest):
            return False
        if self._form is CallForm.HERMES and rest.startswith(_END):
            self._held = rest[len(_END) :]
        self._closing = False
        return True

    def _find_object(self) -> tuple[int, str | None]:
        """As `_find_tag`, where calls are bare objects and nothing stands beside them."""
        rest = self._held.lstrip(_SPACE + ";" if self.num_calls else _SPACE)
        if self._only_calls and rest.startswith("{"):
            self._held = rest
            return 0, ""
        return (0 if self._only_calls and not rest else len(self._held)), None

    def _read(self, reader: CallReader, settled: list[str | CallPiece]) -> bool:
        """Feeds the call under way. Returns whether it has ended."""
        used = reader.feed(self._held)
        if not reader.told:
            self._raw += self._held[:used]
        self._held = self._held[used:]
        if (news := reader.take()) is not None:
            settled.append(CallPiece(self.num_calls, *news))
        if reader.state is State.READING:
            return False
        self._reader = None
        if reader.told:
            self.num_calls += 1
            self._closing = True
        else:
            self._say(self._raw, settled)
        return True

    def _say(self, text: str, settled: list[str | CallPiece]) -> None:
        if text:
            self._only_calls = False
            settled.append(text)


def _find_tag(text: str) -> tuple[int, str | None]:
    """Where a call begins and the tag that opens it; (up to where no tag can begin any more, None)."""
    if (at := text.find(_BEGIN)) >= 0:
        return at, _BEGIN
    partial = next((k for k in range(len(_BEGIN) - 1, 0, -1) if text.endswith(_BEGIN[:k])), 0)
    return len(text[: len(text) - partial].rstrip(_SPACE)), None  # space before a call is not said


def read_calls(style: CallStyle, text: str) -> tuple[str, list[Call]]:
    """A whole answer: what it says beside its calls, and these."""
    stream = CallStream(style)
    said: list[str] = []
    calls: list[tuple[str, list[str]]] = []
    for piece in [*stream.push(text), *stream.finish()]:
        if isinstance(piece, str):
            said.append(piece)
        elif piece.name is not None:
            calls.append((piece.name, [piece.arguments]))
        else:
            calls[-1][1].append(piece.arguments)
    return "".join(said), [Call(name, "".join(arguments)) for name, arguments in calls]
