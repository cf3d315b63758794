"""Builds the messages and the events of Anthropic's Messages API.

The events of a stream, in their order:

    message_start
    for each block    content_block_start, content_block_delta ..., content_block_stop
    message_delta     why the answer ended, and the usage
    message_stop

or `error` at the end of a stream that cannot be completed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.openai.answer import Answer, Piece
from engine.openai.events import Events, Usage, encode_event
from engine.openai.messages_api.errors import message_error
from engine.openai.messages_api.output import Event, Output
from engine.openai.messages_api.requests import parse_message
from engine.openai.requests import ParsedRequest
from engine.openai.responses import Head, metrics_block, usage_block
from engine.openai.tool_calls import CallStream, CallStyle
from engine.request import FinishReason, SpeculationStats
from engine.tokenizer import Tokenizer


class MessagesFormat:
    id_prefix = "msg_"
    parse = staticmethod(parse_message)

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
    ) -> dict[str, Any]:
        (answer,) = answers
        message = _Message(head, calls)
        message.push(
            Piece(
                reasoning=answer.reasoning or "",
                text=answer.text,
                logprobs=(),
                finish_reason=answer.finish_reason,
                stop_string=answer.stop_string,
            )
        )
        usage = usage_block(
            num_prompt_tokens=num_prompt_tokens,
            num_completion_tokens=answer.num_tokens,
            num_cached_tokens=num_cached_tokens,
            num_reasoning_tokens=answer.num_reasoning_tokens,
        )
        return message.whole(usage, stats)

    def events(self, head: Head, parsed: ParsedRequest, *, tokenizer: Tokenizer) -> Events:
        return _MessageEvents(_Message(head, parsed.calls), num_prompt_tokens=parsed.num_prompt_tokens)


class _Message:
    """One message, to which the pieces of the answer are added."""

    def __init__(self, head: Head, calls: CallStyle | None) -> None:
        self._head = head
        self._calls = None if calls is None else CallStream(calls)
        self._output = Output(head.response_id.partition("_")[2])
        self.end: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}

    def push(self, piece: Piece) -> list[Event]:
        events = self._output.add_reasoning(piece.reasoning) if piece.reasoning else []
        settled = [piece.text] if self._calls is None else self._calls.push(piece.text)
        if self._calls is not None and piece.finish_reason is not None:
            settled += self._calls.finish()
        for part in settled:
            if isinstance(part, str):
                events += self._output.add_text(part) if part else []
            else:
                events += self._output.add_call(part)
        if piece.finish_reason is not None:
            self.end = {"stop_reason": self._stop_reason(piece), "stop_sequence": piece.stop_string}
            events += self._output.close()
        return events

    def begun(self, usage: Usage) -> dict[str, Any]:
        fields = self._head.fields("message")
        del fields["object"], fields["created"]
        empty = {"type": "message", "role": "assistant", "content": []}
        return fields | empty | self.end | {"usage": _usage(usage)}

    def whole(self, usage: Usage, stats: SpeculationStats) -> dict[str, Any]:
        return self.begun(usage) | {"content": self._output.blocks, "metrics": metrics_block(stats)}

    def _stop_reason(self, piece: Piece) -> str:
        if piece.finish_reason is FinishReason.LENGTH:
            return "max_tokens"
        if piece.stop_string is not None:
            return "stop_sequence"
        return "tool_use" if self._calls is not None and self._calls.num_calls else "end_turn"


class _MessageEvents:
    def __init__(self, message: _Message, *, num_prompt_tokens: int) -> None:
        self._message = message
        self._num_prompt_tokens = num_prompt_tokens

    def opening(self) -> list[bytes]:
        usage = usage_block(
            num_prompt_tokens=self._num_prompt_tokens,
            num_completion_tokens=0,
            num_cached_tokens=0,  # known at the end, as part of `message_delta`
            num_reasoning_tokens=0,
        )
        return _encoded([{"type": "message_start", "message": self._message.begun(usage)}])

    def of(self, index: int, piece: Piece, usage: Usage) -> list[bytes]:
        return _encoded(self._message.push(piece))

    def closing(self, usage: Usage, stats: SpeculationStats) -> list[bytes]:
        delta = {"type": "message_delta", "delta": self._message.end, "usage": _usage(usage)}
        return _encoded([delta | {"metrics": metrics_block(stats)}, {"type": "message_stop"}])

    def failed(self, error: Mapping[str, Any]) -> list[bytes]:
        return _encoded([message_error(error)])


def _encoded(events: Sequence[Event]) -> list[bytes]:
    return [encode_event(event, name=event["type"]) for event in events]


def _usage(usage: Usage) -> dict[str, Any]:
    """Translates the usage of chat completions. Anthropic's `input_tokens` do not include cached tokens."""
    num_cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
    }
