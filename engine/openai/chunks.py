"""The events of streamed chat and text completions: chunks, which have no event type, and `[DONE]` at the end."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from engine.openai.acceptance import Part
from engine.openai.answer import Piece
from engine.openai.events import Usage, encode_event
from engine.openai.requests import ParsedRequest
from engine.openai.responses import Head, usage_chunk
from engine.request import SpeculationStats

Chunk = dict[str, Any]


class Chunks(Protocol):
    """Builds the chunks of one streamed response."""

    def opening(self, index: int) -> list[Chunk]:
        """Returns the chunks before the first text of a choice."""

    def of(self, index: int, piece: Piece) -> list[Chunk]:
        """Returns the chunks of a piece; an empty piece has no chunks. The finish reason has a separate chunk."""


class ChunkEvents:
    def __init__(self, head: Head, kind: str, parsed: ParsedRequest, chunks: Chunks) -> None:
        """`kind`: the `object` of the chunks."""
        self._head = head
        self._kind = kind
        self._parsed = parsed
        self._chunks = chunks
        # OpenAI's clients expect this key on every chunk if they requested usage.
        self._extra: dict[str, Any] = {"usage": None} if parsed.include_usage else {}
        self._token_ids: dict[int, list[int]] = {}  # by index of the choice: token ids that no chunk contains yet
        self._with_prompt: set[int] = set()  # choices of a text completion that have sent their prompts' ids

    def opening(self) -> list[bytes]:
        chunks = [chunk for index in range(len(self._parsed.choices)) for chunk in self._chunks.opening(index)]
        if self._parsed.return_token_ids and chunks:
            chunks[0]["prompt_token_ids"] = list(self._parsed.prompt_token_ids)
        return [encode_event(chunk | self._extra) for chunk in chunks]

    def of(self, index: int, piece: Piece, usage: Usage) -> list[bytes]:
        if self._parsed.continuous_usage:
            self._extra["usage"] = usage
        chunks = self._chunks.of(index, piece)
        if self._parsed.return_token_ids:
            self._add_token_ids(index, piece, chunks)
        if self._parsed.return_acceptance:
            _add_acceptance(piece, chunks)
        return [encode_event(chunk | self._extra) for chunk in chunks]

    def closing(self, usage: Usage, stats: SpeculationStats) -> list[bytes]:
        done = b"data: [DONE]\n\n"
        if not self._parsed.include_usage:
            return [done]
        return [encode_event(usage_chunk(self._head, self._kind, usage=usage, stats=stats)), done]

    def _add_token_ids(self, index: int, piece: Piece, chunks: list[Chunk]) -> None:
        """Adds the ids to the first chunk of a piece; the ids of a piece without chunks wait for the next piece."""
        waiting = self._token_ids.setdefault(index, [])
        waiting += piece.token_ids
        if not chunks:
            return
        (choice,) = chunks[0]["choices"]
        choice["token_ids"] = waiting[:]
        waiting.clear()
        if self._kind == "text_completion" and index not in self._with_prompt:
            self._with_prompt.add(index)
            choice["prompt_token_ids"] = list(self._parsed.prompts[self._parsed.choices[index][0]])

    def failed(self, error: Mapping[str, Any]) -> list[bytes]:
        return [encode_event({"error": error})]


def _add_acceptance(piece: Piece, chunks: list[Chunk]) -> None:
    """Adds the parts of the text to each chunk that has text."""
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta: Mapping[str, Any] = choice.get("delta", choice)
        if delta.get("reasoning_content"):
            choice["acceptance"] = _objects_of(piece.reasoning_parts)
        elif delta.get("content") or delta.get("text"):
            choice["acceptance"] = _objects_of(piece.text_parts)


def _objects_of(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [{"text": part.text, "accepted": part.accepted} for part in parts]
