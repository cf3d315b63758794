"""The two ways to ask and to answer, chat and text completions, behind one set of methods."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.answer import Answer, Piece
from engine.protocol import ParsedRequest, parse_chat, parse_completion
from engine.request import SpeculationStats
from engine.responses import (
    Head,
    chat_chunk,
    chat_completion,
    chat_logprobs,
    text_chunk,
    text_completion,
    text_logprobs,
)
from engine.tokenizer import Tokenizer


class Format(Protocol):
    id_prefix: str
    chunk_kind: str  # the `object` of a stream's chunks

    def parse(self, body: Mapping[str, Any], *, tokenizer: Tokenizer, max_seq_len: int) -> ParsedRequest: ...

    def whole(
        self,
        head: Head,
        answers: Sequence[Answer],
        *,
        num_prompt_tokens: int,
        stats: SpeculationStats,
        tokenizer: Tokenizer,
    ) -> dict[str, Any]: ...

    def opening(self, head: Head, index: int) -> list[dict[str, Any]]:
        """The chunks before a choice's first text."""

    def chunks(self, head: Head, index: int, piece: Piece, tokenizer: Tokenizer) -> list[dict[str, Any]]:
        """None for a piece that shows nothing; how the choice ended stands in a chunk of its own."""


class ChatFormat:
    id_prefix = "chatcmpl-"
    chunk_kind = "chat.completion.chunk"
    parse = staticmethod(parse_chat)
    whole = staticmethod(chat_completion)

    def opening(self, head: Head, index: int) -> list[dict[str, Any]]:
        return [chat_chunk(head, index, delta={"role": "assistant", "content": "", "refusal": None})]

    def chunks(self, head: Head, index: int, piece: Piece, tokenizer: Tokenizer) -> list[dict[str, Any]]:
        chunks = []
        if piece.text or piece.logprobs:
            logprobs = chat_logprobs(piece.logprobs, tokenizer) if piece.logprobs else None
            chunks.append(chat_chunk(head, index, delta={"content": piece.text}, logprobs=logprobs))
        if piece.finish_reason is not None:
            chunks.append(chat_chunk(head, index, delta={}, finish_reason=str(piece.finish_reason)))
        return chunks


class TextFormat:
    id_prefix = "cmpl-"
    chunk_kind = "text_completion"
    parse = staticmethod(parse_completion)
    whole = staticmethod(text_completion)

    def opening(self, head: Head, index: int) -> list[dict[str, Any]]:
        return []

    def chunks(self, head: Head, index: int, piece: Piece, tokenizer: Tokenizer) -> list[dict[str, Any]]:
        chunks = []
        if piece.text or piece.logprobs:
            logprobs = text_logprobs(piece.logprobs, tokenizer) if piece.logprobs else None
            chunks.append(text_chunk(head, index, text=piece.text, logprobs=logprobs))
        if piece.finish_reason is not None:
            chunks.append(text_chunk(head, index, text="", finish_reason=str(piece.finish_reason)))
        return chunks
