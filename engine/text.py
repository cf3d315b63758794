"""Incremental decoding of token ids to text, and stop strings.

The concatenated pieces of text that a stream returns equal the decoding of all ids at once, cut before the stop string
that is completed first (before the longest one if several are completed at the same character). This holds however the
ids are split over the calls, so the text does not depend on the number of tokens per engine step.

    ids ─ decode the window of latest ids ─ settled text ─ hold back what may begin a stop string ─ returned text

The window starts with the last settled piece, because some tokenizers drop the space before the first token. Text is
settled when no later token can change it. It is not settled while it ends in an incomplete character, which decodes as
U+FFFD, or, in tokenizers with byte fallback, within a run of byte tokens, because a run is decoded as a whole.
"""

from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The part of `engine.tokenizer.Tokenizer` that this module needs."""

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def is_special(self, token_id: int) -> bool: ...

    def is_byte(self, token_id: int) -> bool: ...


class TextStream:
    """The text of one answer. Call `push` with the ids of each step, then `finish`. Once `stopped`, both return ""."""

    def __init__(self, tokenizer: Detokenizer, *, stop: Sequence[str] = (), per_token: bool = False) -> None:
        """`per_token`: whether to record `token_starts`; with stop strings it is always recorded."""
        self._window = _Window(tokenizer)
        self._cutter = _StopCutter(stop)
        self._one_by_one = per_token or bool(stop)
        self.text = ""  # all text returned so far
        self.num_tokens = 0  # ids processed, up to the one that completed a stop string
        self.token_starts: list[int] = []  # number of settled characters before each token

    @property
    def stopped(self) -> bool:
        return self._cutter.matched is not None

    def push(self, token_ids: Sequence[int]) -> str:
        """Returns the text that these ids settle, without an end that may begin a stop string."""
        if not self._one_by_one:
            self.num_tokens += len(token_ids)
            return self._append(self._cutter.feed(self._window.push(token_ids)))
        pieces = []
        for token_id in token_ids:
            if self.stopped:
                break
            self.num_tokens += 1
            self.token_starts.append(self._window.num_characters)
            pieces.append(self._cutter.feed(self._window.push([token_id])))
        return self._append("".join(pieces))

    def finish(self) -> str:
        """Ends the answer. Returns the text that was held back, with an incomplete character as U+FFFD."""
        if self.stopped:
            return ""
        last = self._cutter.feed(self._window.finish())
        return self._append(last + self._cutter.finish())

    def _append(self, piece: str) -> str:
        self.text += piece
        return piece


class _Window:
    """Decodes the ids of the window again at each push, and returns the characters that are new."""

    def __init__(self, tokenizer: Detokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # ids in the window
        self._num_settled_ids = 0  # number of first ids in the window that were settled before the last piece
        self._num_returned = 0  # number of characters of the window that were returned
        self.num_characters = 0  # number of characters that were returned in total

    def push(self, token_ids: Sequence[int]) -> str:
        if not token_ids:
            return ""
        self._ids.extend(token_ids)
        if self._ends_in_byte_run():
            return ""
        text = self._tokenizer.decode(self._ids)
        # An incomplete character decodes as one U+FFFD; an earlier U+FFFD stands for bytes that never form a character.
        num_settled = len(text) - 1 if text.endswith(_REPLACEMENT) else len(text)
        piece = text[self._num_returned : num_settled]
        self._num_returned = max(self._num_returned, num_settled)
        self.num_characters += len(piece)
        if num_settled == len(text):
            self._advance()
        return piece

    def finish(self) -> str:
        piece = self._tokenizer.decode(self._ids)[self._num_returned :]
        self._num_returned += len(piece)
        self.num_characters += len(piece)
        return piece

    def _ends_in_byte_run(self) -> bool:
        last = next((i for i in reversed(self._ids) if not self._tokenizer.is_special(i)), None)
        return last is not None and self._tokenizer.is_byte(last)

    def _advance(self) -> None:
        """Drops the ids before the last piece, unless that piece has only special tokens, which give no context."""
        last = self._ids[self._num_settled_ids :]
        if self._num_settled_ids and not all(self._tokenizer.is_special(i) for i in last):
            self._ids = last
            self._num_returned = len(self._tokenizer.decode(last))
        self._num_settled_ids = len(self._ids)


class _StopCutter:
    """Returns text up to the first stop string, and holds back an end that may be the beginning of a stop string."""

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
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((k for k in range(longest, 0, -1) if text.endswith(stop[:k])), 0)
