"""Incremental decoding of token ids to text, and stop strings.

A stream returns the text in pieces. The joined pieces equal the decoding of all ids at once, cut before the stop string
that is completed first. If several stop strings are completed at the same character, the longest one counts. The text
is the same for every division of the ids among the calls, so it does not depend on the number of tokens per engine
step.

    ids ─ decode the latest ids ─ settled text ─ hold back what may begin a stop string ─ returned text

Text is settled when no later token can change it. If the text is the UTF-8 decoding of the tokens' bytes, each byte is
decoded once, and only an incomplete character at the end is not settled. For other tokenizers, each call decodes a
window of the latest ids again. The window starts with the last settled piece, because some tokenizers drop the space
before the first token. Within a run of byte tokens, the window's text is not settled, because a run is decoded as a
whole, when it ends.

The work is linear in the number of ids, whatever the ids are. The server relies on this, because it decodes text in its
event loop.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The part of `engine.tokenizer.Tokenizer` that this module needs."""

    @property
    def text_is_utf8(self) -> bool: ...

    def text_bytes(self, token_id: int) -> bytes: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def is_special(self, token_id: int) -> bool: ...

    def is_byte(self, token_id: int) -> bool: ...


class TextStream:
    """The text of one answer. Call `push` with the ids of each step, then `finish`. Once `stopped`, both return ""."""

    def __init__(self, tokenizer: Detokenizer, *, stop: Sequence[str] = (), per_token: bool = False) -> None:
        """`per_token`: whether to record `token_starts`; with stop strings it is always recorded."""
        self._window = _Utf8Decoder(tokenizer) if tokenizer.text_is_utf8 else _Window(tokenizer)
        self._cutter = _StopCutter(stop)
        self._one_by_one = per_token or bool(stop)
        self.text = ""  # all text returned so far
        self.num_tokens = 0  # ids processed, up to the one that completed a stop string
        self.token_starts: list[int] = []  # number of settled characters before each token

    @property
    def stopped(self) -> bool:
        return self.stop_string is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        return self._cutter.matched

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


class _Utf8Decoder:
    """Decodes the bytes of the ids, and returns the characters that are settled.

    A U+FFFD at the end is held back and returned together with the next character.
    """

    def __init__(self, tokenizer: Detokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.num_characters = 0  # number of characters that were returned in total

    def push(self, token_ids: Sequence[int]) -> str:
        text = self._held + self._decoder.decode(b"".join(map(self._tokenizer.text_bytes, token_ids)))
        is_complete = not self._decoder.getstate()[0]
        self._held = _REPLACEMENT if is_complete and text.endswith(_REPLACEMENT) else ""
        return self._count(text[: len(text) - len(self._held)])

    def finish(self) -> str:
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return self._count(text)

    def _count(self, piece: str) -> str:
        self.num_characters += len(piece)
        return piece


class _Window:
    """Decodes the ids of the window again at each push, and returns the characters that are new."""

    def __init__(self, tokenizer: Detokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # ids in the window
        self._num_settled_ids = 0  # number of ids at the window's start whose text was returned in earlier pieces
        self._num_returned = 0  # number of characters of the window that were returned
        self.num_characters = 0  # number of characters that were returned in total

    def push(self, token_ids: Sequence[int]) -> str:
        shown = [i for i in token_ids if not self._tokenizer.is_special(i)]  # special tokens have no text
        self._ids.extend(shown)
        if not shown or self._tokenizer.is_byte(shown[-1]):
            return ""
        piece = self._tokenizer.decode(self._ids)[self._num_returned :]
        self.num_characters += len(piece)
        self._advance()
        return piece

    def finish(self) -> str:
        piece = self._tokenizer.decode(self._ids)[self._num_returned :]
        self._num_returned += len(piece)
        self.num_characters += len(piece)
        return piece

    def _advance(self) -> None:
        """Settles all ids, and drops the ids before the last piece from the window."""
        self._ids = self._ids[self._num_settled_ids :]
        self._num_returned = len(self._tokenizer.decode(self._ids))
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
