"""From token ids to text, piece by piece, and the end of an answer at a stop string.

The promise: the pieces, put together, are the decoding of all ids at once, cut before the stop string that is complete
first (of those complete at the same character, the longest), however the ids were split over the calls. So the text
does not depend on how many tokens a step of the engine brought.

    ids ─ decode a short window ─ settled text ─ hold back what may begin a stop string ─ shown text

A window starts one piece early, since some tokenizers drop the space before their first token. Text is settled when
no later token can change it: not while it ends in part of a character, which decodes as U+FFFD, nor, in tokenizers
that fall back to bytes, within a run of byte tokens, whose text is decided by the whole run.
"""

from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """What text needs of `engine.tokenizer.Tokenizer`."""

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def is_special(self, token_id: int) -> bool: ...

    def is_byte(self, token_id: int) -> bool: ...


class TextStream:
    """One answer's text. `push` each step's ids, then `finish` once; after `stopped` both do nothing."""

    def __init__(self, tokenizer: Detokenizer, *, stop: Sequence[str] = (), per_token: bool = False) -> None:
        """`per_token` fills `token_starts`; with stop strings it is filled always."""
        self._window = _Window(tokenizer)
        self._cutter = _StopCutter(stop)
        self._one_by_one = per_token or bool(stop)
        self.text = ""  # all that was given out
        self.num_tokens = 0  # ids taken, up to the one that completed a stop string
        self.token_starts: list[int] = []  # characters settled before each token taken

    @property
    def stopped(self) -> bool:
        return self._cutter.matched is not None

    def push(self, token_ids: Sequence[int]) -> str:
        """Returns the text that these ids settle, "" while it is held back."""
        if not self._one_by_one:
            self.num_tokens += len(token_ids)
            return self._show(self._cutter.feed(self._window.push(token_ids)))
        pieces = []
        for token_id in token_ids:
            if self.stopped:
                break
            self.num_tokens += 1
            self.token_starts.append(self._window.num_characters)
            pieces.append(self._cutter.feed(self._window.push([token_id])))
        return self._show("".join(pieces))

    def finish(self) -> str:
        """No more ids will come. Returns what was held back, an incomplete character as U+FFFD."""
        if self.stopped:
            return ""
        last = self._cutter.feed(self._window.finish())
        return self._show(last + self._cutter.finish())

    def _show(self, piece: str) -> str:
        self.text += piece
        return piece


class _Window:
    """Incremental decoding. `ids[start:]` is decoded anew at each push; `shown` of its characters were given out."""

    def __init__(self, tokenizer: Detokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # from the window's start
        self._num_settled_ids = 0  # of them, those before the last piece
        self._shown = 0
        self.num_characters = 0

    def push(self, token_ids: Sequence[int]) -> str:
        if not token_ids:
            return ""
        self._ids.extend(token_ids)
        if self._ends_in_byte_run():
            return ""
        text = self._tokenizer.decode(self._ids)
        # What is missing of one character decodes as one U+FFFD; those before it are bytes that never made a character.
        num_settled = len(text) - 1 if text.endswith(_REPLACEMENT) else len(text)
        piece = text[self._shown : num_settled]
        self._shown = max(self._shown, num_settled)
        self.num_characters += len(piece)
        if num_settled == len(text):
            self._advance()
        return piece

    def finish(self) -> str:
        piece = self._tokenizer.decode(self._ids)[self._shown :]
        self._shown += len(piece)
        self.num_characters += len(piece)
        return piece

    def _ends_in_byte_run(self) -> bool:
        spoken = next((i for i in reversed(self._ids) if not self._tokenizer.is_special(i)), None)
        return spoken is not None and self._tokenizer.is_byte(spoken)

    def _advance(self) -> None:
        """Drops all but the last piece, unless that is special tokens alone: they are no context."""
        last = self._ids[self._num_settled_ids :]
        if self._num_settled_ids and not all(self._tokenizer.is_special(i) for i in last):
            self._ids = last
            self._shown = len(self._tokenizer.decode(last))
        self._num_settled_ids = len(self._ids)


class _StopCutter:
    """Lets text through up to the first stop string, holding back an end that may become one."""

    def __init__(self, stop: Sequence[str]) -> None:
        if "" in stop:
            raise ValueError("stop strings must not be empty, got an empty one")
        self._stop = tuple(stop)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        buffer = self._held + text
        if not self._stop or not buffer:
            return buffer
        matches = [(at + len(s), at, s) for s in self._stop if (at := buffer.find(s)) >= 0]
        if matches:
            _, at, self.matched = min(matches)
            self._held = ""
            return buffer[:at]
        num_held = max(_overlap(buffer, s) for s in self._stop)
        self._held = buffer[len(buffer) - num_held :]
        return buffer[: len(buffer) - num_held]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((k for k in range(longest, 0, -1) if text.endswith(stop[:k])), 0)
