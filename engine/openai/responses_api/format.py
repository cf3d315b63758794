"""Builds the response objects and the events of the Responses API.

The events of a stream, in their order:

    response.created, response.in_progress
    for each item    response.output_item.added
                     trace: reasoning_text.delta ..., reasoning_text.done
                     text:  content_part.added, output_text.delta ..., output_text.done, content_part.done
                     call:  function_call_arguments.delta ..., function_call_arguments.done
                     response.output_item.done
    response.completed, response.incomplete (the answer reached max_output_tokens) or response.failed
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.openai.answer import Answer, Piece
from engine.openai.events import Events, Usage, encode_event
from engine.openai.requests import ParsedRequest
from engine.openai.responses import Head, chat_logprobs, metrics_block, usage_block
from engine.openai.responses_api.output import Event, Output
from engine.openai.responses_api.requests import parse_response
from engine.openai.tool_calls import CallForm, CallStream, CallStyle
from engine.request import FinishReason, SpeculationStats
from engine.tokenizer import Tokenizer

# Members of the request that a response repeats, with the values for members that the request does not have.
_REPEATED: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": False,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


class ResponsesFormat:
    """The format of one request: responses repeat members of its body."""

    id_prefix = "resp_"

    def __init__(self) -> None:
        self._repeated: Mapping[str, Any] = _REPEATED

    def parse(
        self, body: Mapping[str, Any], *, tokenizer: Tokenizer, max_seq_len: int, call_form: CallForm | None
    ) -> ParsedRequest:
        parsed = parse_response(body, tokenizer=tokenizer, max_seq_len=max_seq_len, call_form=call_form)
        given = {name: body[name] for name in _REPEATED if body.get(name) is not None}
        self._repeated = _REPEATED | given | {"service_tier": "default"}
        return parsed

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
        usage = usage_block(
            num_prompt_tokens=num_prompt_tokens,
            num_completion_tokens=answer.num_tokens,
            num_cached_tokens=num_cached_tokens,
            num_reasoning_tokens=answer.num_reasoning_tokens,
        )
        response = _Response(head, self._repeated, calls, tokenizer)
        response.push(
            Piece(
                reasoning=answer.reasoning or "",
                text=answer.text,
                logprobs=answer.logprobs or (),
                finish_reason=answer.finish_reason,
            )
        )
        return response.ended(usage, stats)

    def events(self, head: Head, parsed: ParsedRequest, *, tokenizer: Tokenizer) -> Events:
        return _ResponseEvents(_Response(head, self._repeated, parsed.calls, tokenizer))


class _Response:
    """One response, to which the pieces of the answer are added."""

    def __init__(self, head: Head, repeated: Mapping[str, Any], calls: CallStyle | None, tokenizer: Tokenizer) -> None:
        self._head = head
        self._repeated = repeated
        self._calls = None if calls is None else CallStream(calls)
        self._tokenizer = tokenizer
        self._output = Output(head.response_id.partition("_")[2])
        self._finish_reason: FinishReason | None = None

    def push(self, piece: Piece) -> list[Event]:
        events = self._output.add_reasoning(piece.reasoning) if piece.reasoning else []
        if self._calls is None:
            of_text = [entry for entry in piece.logprobs if not entry.in_trace]  # a trace has no log-probabilities here
            logprobs = chat_logprobs(of_text, self._tokenizer)["content"]
            if piece.text or logprobs:
                events += self._output.add_text(piece.text, logprobs)
        else:
            settled = self._calls.push(piece.text)
            if piece.finish_reason is not None:
                settled += self._calls.finish()
            for part in settled:
                events += self._output.add_text(part, []) if isinstance(part, str) else self._output.add_call(part)
        if piece.finish_reason is not None:
            self._finish_reason = piece.finish_reason
            events += self._output.open_if_empty()
            events += self._output.close(status=self._status)
        return events

    def in_progress(self) -> dict[str, Any]:
        return self._object("in_progress")

    def ended(self, usage: Usage, stats: SpeculationStats) -> dict[str, Any]:
        details = None if self._status == "completed" else {"reason": "max_output_tokens"}
        ended = self._object(self._status) | {"incomplete_details": details, "usage": _usage(usage)}
        return ended | {"output": self._output.copied_items(), "metrics": metrics_block(stats)}

    def failed(self, error: Mapping[str, Any]) -> dict[str, Any]:
        # OpenAI's codes for this place are a closed list; the event `error` has the code of docs/errors.md.
        failure = {"code": "server_error", "message": error["message"]}
        return self._object("failed") | {"error": failure, "output": self._output.copied_items()}

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish_reason is FinishReason.LENGTH else "completed"

    def _object(self, status: str) -> dict[str, Any]:
        fields = self._head.fields("response")
        created_at = fields.pop("created")
        empty: dict[str, Any] = {
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }
        return fields | {"created_at": created_at} | dict(self._repeated) | empty


class _ResponseEvents:
    def __init__(self, response: _Response) -> None:
        self._response = response
        self._num_events = 0

    def opening(self) -> list[bytes]:
        response = self._response.in_progress()
        kinds = ("response.created", "response.in_progress")
        return self._encoded([{"type": kind, "response": response} for kind in kinds])

    def of(self, index: int, piece: Piece, usage: Usage) -> list[bytes]:
        return self._encoded(self._response.push(piece))

    def closing(self, usage: Usage, stats: SpeculationStats) -> list[bytes]:
        response = self._response.ended(usage, stats)
        return self._encoded([{"type": f"response.{response['status']}", "response": response}])

    def failed(self, error: Mapping[str, Any]) -> list[bytes]:
        """The member `error` of the last event makes OpenAI's client raise an exception."""
        failure = {"code": error["code"], "message": error["message"], "param": error["param"], "error": dict(error)}
        failed = {"type": "response.failed", "response": self._response.failed(error)}
        return self._encoded([failed, {"type": "error", **failure}])

    def _encoded(self, events: Sequence[Event]) -> list[bytes]:
        encoded = []
        for event in events:
            encoded.append(encode_event(event | {"sequence_number": self._num_events}, name=event["type"]))
            self._num_events += 1
        return encoded


def _usage(usage: Usage) -> dict[str, Any]:
    """Translates the usage of chat completions."""
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens", 0), "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens", 0)},
        "total_tokens": usage["total_tokens"],
    }
