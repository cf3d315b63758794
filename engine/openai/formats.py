"""A common interface to the formats of chat completions and text completions."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.openai.answer import Answer, Piece
from engine.openai.chunks import Chunk, ChunkEvents
from engine.openai.events import Events
from engine.openai.requests import ParsedRequest, parse_chat, parse_completion
from engine.openai.responses import (
    Head,
    call_delta,
    chat_chunk,
    chat_completion,
    chat_finish_reason,
    chat_logprobs,
    text_chunk,
    text_completion,
    text_logprobs,
)
from engine.openai.tool_calls import CallForm, CallStream, CallStyle
from engine.request import SpeculationStats
from engine.tokenizer import Tokenizer


class Format(Protocol):
    id_prefix: str

    def parse(
        self, body: Mapping[str, Any], *, tokenizer: Tokenizer, max_seq_len: int, call_form: CallForm | None
    ) -> ParsedRequest: ...

    def whole(
        self,
        head: Head,
        answers: Sequence[Answer],
        *,
        num_prompt_tokens: int,
        num_cached_tokens: int,
        stats: SpeculationStats,
        tokenizer: Tokenizer,
        calls: CallStyle | None,
    ) -> dict[str, Any]: ...

    def events(self, head: Head, parsed: ParsedRequest, *, tokenizer: Tokenizer) -> Events: ...


class ChatFormat:
    id_prefix = "chatcmpl-"
    parse = staticmethod(parse_chat)
    whole = staticmethod(chat_completion)

    def events(self, head: Head, parsed: ParsedRequest, *, tokenizer: Tokenizer) -> Events:
        return ChunkEvents(head, "chat.completion.chunk", parsed, _ChatChunks(head, tokenizer, parsed.calls))


class TextFormat:
    id_prefix = "cmpl-"
    parse = staticmethod(parse_completion)
    whole = staticmethod(text_completion)

    def events(self, head: Head, parsed: ParsedRequest, *, tokenizer: Tokenizer) -> Events:
        return ChunkEvents(head, "text_completion", parsed, _TextChunks(head, tokenizer))


class _ChatChunks:
    def __init__(self, head: Head, tokenizer: Tokenizer, calls: CallStyle | None) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._calls = calls
        self._streams: dict[int, CallStream] = {}  # by index of the choice

    def opening(self, index: int) -> list[Chunk]:
        return [chat_chunk(self._head, index, delta={"role": "assistant", "content": "", "refusal": None})]

    def of(self, index: int, piece: Piece) -> list[Chunk]:
        deltas = self._deltas(index, piece)
        if piece.logprobs and not deltas:
            deltas = [{"content": ""}]
        chunks = [chat_chunk(self._head, index, delta=delta) for delta in deltas]
        if piece.logprobs:
            chunks[0]["choices"][0]["logprobs"] = chat_logprobs(piece.logprobs, self._tokenizer)
        if piece.finish_reason is not None:
            called = self._calls is not None and self._streams[index].num_calls > 0
            reason = chat_finish_reason(piece.finish_reason, called=called)
            chunks.append(chat_chunk(self._head, index, delta={}, finish_reason=reason))
        return chunks

    def _deltas(self, index: int, piece: Piece) -> list[Chunk]:
        reasoning = [{"reasoning_content": piece.reasoning}] if piece.reasoning else []
        return reasoning + self._deltas_of_text(index, piece)

    def _deltas_of_text(self, index: int, piece: Piece) -> list[Chunk]:
        if self._calls is None:
            return [{"content": piece.text}] if piece.text else []
        stream = self._streams.setdefault(index, CallStream(self._calls))
        settled = stream.push(piece.text)
        if piece.finish_reason is not None:
            settled += stream.finish()
        return [{"content": s} if isinstance(s, str) else call_delta(self._head, index, s) for s in settled]


class _TextChunks:
    def __init__(self, head: Head, tokenizer: Tokenizer) -> None:
        self._head = head
        self._tokenizer = tokenizer

    def opening(self, index: int) -> list[Chunk]:
        return []

    def of(self, index: int, piece: Piece) -> list[Chunk]:
        chunks = []
        if piece.text or piece.logprobs:
            logprobs = text_logprobs(piece.logprobs, self._tokenizer) if piece.logprobs else None
            chunks.append(text_chunk(self._head, index, text=piece.text, logprobs=logprobs))
        if piece.finish_reason is not None:
            chunks.append(text_chunk(self._head, index, text="", finish_reason=str(piece.finish_reason)))
        return chunks
