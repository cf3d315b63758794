"""Sketches of prompts, which find equal and similar prompts in time and memory that grow only with their number.

    body of a request ─┬─ normalised prompt ──> key: equal keys are an exact duplicate
                       └─ words ─> shingles ─> MinHash ──> bands: one equal band is a near duplicate

The key covers all that the model reads: messages, prompt and tools. The bands cover the words of the prompt without its
system messages. An application sends the same long system messages with every request, so they would make all requests
similar.

Two prompts with Jaccard similarity s of their shingles have an equal band with probability 1 - (1 - s^12)^12: 98% for
s = 0.9, 57% for 0.8, 15% for 0.7 and 0.3% for 0.5. No pair of prompts is compared directly, so a file in which all
prompts are similar takes no longer than any other file.

Source: Broder 1997, "On the resemblance and containment of documents". FineWeb (arXiv:2406.17557) finds duplicates by
equal bands alone, too.
"""

import hashlib
import json
import re
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

SHINGLE_WORDS = 3
NUM_BANDS = 12
BAND_HASHES = 12
# A longer prompt is sketched by windows that are spread evenly over it, which bounds the memory for its words.
NUM_WINDOWS, WINDOW_CHARACTERS = 8, 2048
_SEED = 1
_KEY_BYTES = 16
_RECORD = struct.Struct(f"<I{_KEY_BYTES}s{NUM_BANDS}Q")  # line, key, bands
_BAND = struct.Struct(f"<{BAND_HASHES}I")
# Scripts without spaces between words: each character is a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+|[^\w\s]+")
_NOT_COMPARED = ("system", "developer")


def prompt_key(body: Mapping[str, Any]) -> bytes:
    """Returns a key of the text that the model reads. Ids, sampling settings and the amount of white space do not
    matter."""
    messages = body.get("messages")
    read = {
        "messages": [_normalised_message(one) for one in messages] if isinstance(messages, list) else messages,
        "prompt": _squashed(body.get("prompt")),
        "tools": body.get("tools"),
    }
    return hashlib.blake2b(json.dumps(read, sort_keys=True).encode(), digest_size=_KEY_BYTES).digest()


def _normalised_message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    text = _text_of(message.get("content"))
    return message if text is None else {**message, "content": _squashed(text)}


def _squashed(value: Any) -> Any:
    return " ".join(unicodedata.normalize("NFC", value).split()) if isinstance(value, str) else value


def _text_of(content: Any) -> str | None:
    """Returns the text of a message's content; None if it is not text only."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return None
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    return "".join(texts) if len(texts) == len(content) and all(isinstance(text, str) for text in texts) else None


def prompt_bands(body: Mapping[str, Any]) -> list[int]:
    """Returns one number for each band of the prompt's MinHash signature.

    A prompt without words, such as one of images only, is similar to no other prompt: its bands come from its key.
    """
    shingles = _shingles(_compared_text(body))
    if not shingles:
        key = prompt_key(body)
        return [_hash(key + bytes([number])) for number in range(NUM_BANDS)]
    # The allocator of this package reserves 1 GiB of address space, or less if the process has a limit. `child.serve`
    # must therefore set the limit before this import.
    from rensa import RMinHash

    sketch = RMinHash(num_perm=NUM_BANDS * BAND_HASHES, seed=_SEED)
    sketch.update(shingles)
    signature = sketch.digest()
    bands = (signature[start : start + BAND_HASHES] for start in range(0, len(signature), BAND_HASHES))
    return [_hash(_BAND.pack(*band)) for band in bands]


def _hash(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _shingles(text: str) -> list[str]:
    if len(text) > NUM_WINDOWS * WINDOW_CHARACTERS:
        step = (len(text) - WINDOW_CHARACTERS) / (NUM_WINDOWS - 1)
        starts = [round(number * step) for number in range(NUM_WINDOWS)]
        text = " ".join(text[start : start + WINDOW_CHARACTERS] for start in starts)
    words = _WORD.findall(_plain(text))
    if len(words) < SHINGLE_WORDS:
        return [" ".join(words)] if words else []
    return list(map(" ".join, zip(*(words[start:] for start in range(SHINGLE_WORDS)), strict=False)))


def _plain(text: str) -> str:
    """Returns the text in one of its equivalent Unicode forms, without case, invisible characters and surrogates."""
    text = unicodedata.normalize("NFKC", text).casefold().encode(errors="replace").decode()
    return "".join(character for character in text if unicodedata.category(character) != "Cf")


def _compared_text(body: Mapping[str, Any]) -> str:
    """Returns the text of a prompt without its system messages, unless it has no other text."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return _prompt_text(body.get("prompt"))
    rows = [message for message in messages if isinstance(message, dict)]
    own = [message for message in rows if message.get("role") not in _NOT_COMPARED]
    text = _joined(own)
    return text if text.strip() else _joined(rows)


def _joined(messages: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(filter(None, (_text_of(message.get("content")) for message in messages)))


def _prompt_text(prompt: Any) -> str:
    """Returns the text of a prompt. Args: prompt: a string, or a list of strings, of token ids or of lists of token
    ids."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt)


class Sketches:
    """The sketches of the prompts of one file, in the order of its lines. Each takes 116 bytes."""

    def __init__(self, records: bytes = b"") -> None:
        self._records = bytearray(records)

    def __len__(self) -> int:
        return len(self._records) // _RECORD.size

    def add(self, line: int, body: Mapping[str, Any]) -> bytes:
        """Adds the prompt on this line. Returns: its key."""
        key = prompt_key(body)
        self._records += _RECORD.pack(line, key, *prompt_bands(body))
        return key

    def save(self, path: str) -> None:
        Path(path).write_bytes(self._records)

    @classmethod
    def load(cls, path: str) -> "Sketches":
        return cls(Path(path).read_bytes())

    @property
    def lines(self) -> list[int]:
        return [line for (line,) in self._columns("I", 0)]

    def keys(self) -> Iterator[bytes]:
        return (key for (key,) in self._columns(f"{_KEY_BYTES}s", 4))

    def bands(self, number: int) -> Iterator[int]:
        return (band for (band,) in self._columns("Q", 4 + _KEY_BYTES + 8 * number))

    def _columns(self, form: str, offset: int) -> Iterator[tuple[Any]]:
        rest = _RECORD.size - offset - struct.calcsize(f"<{form}")
        return struct.iter_unpack(f"<{offset}x{form}{rest}x", self._records)


Twins = dict[int, int]  # the position of a prompt in its file -> the position of the first prompt that is like it


def twins_within(sketches: Sketches) -> tuple[Twins, Twins]:
    """Returns the duplicates of earlier prompts of the same file: exact duplicates, and other near duplicates."""

    def repeated(values: Iterable[Any]) -> Iterator[tuple[int, int]]:
        first: dict[Any, int] = {}
        for position, value in enumerate(values):
            if (earlier := first.setdefault(value, position)) != position:
                yield position, earlier

    exact = dict(repeated(sketches.keys()))
    near = (pair for number in range(NUM_BANDS) for pair in repeated(sketches.bands(number)))
    return exact, _first_twins(near, exact)


def twins_across(sketches: Sketches, others: Sketches) -> tuple[Twins, Twins]:
    """Returns the duplicates of prompts of `others`: exact duplicates, and other near duplicates."""

    def shared(values: Iterable[Any], other_values: Iterable[Any]) -> Iterator[tuple[int, int]]:
        first: dict[Any, int] = {}
        for position, value in enumerate(other_values):
            first.setdefault(value, position)
        for position, value in enumerate(values):
            if (other := first.get(value)) is not None:
                yield position, other

    exact = dict(shared(sketches.keys(), others.keys()))
    bands = range(NUM_BANDS)
    near = (pair for number in bands for pair in shared(sketches.bands(number), others.bands(number)))
    return exact, _first_twins(near, exact)


def _first_twins(pairs: Iterable[tuple[int, int]], exact: Twins) -> Twins:
    first: Twins = {}
    for position, other in pairs:
        if position not in exact:
            first[position] = min(other, first.get(position, other))
    return first
