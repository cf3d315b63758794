"""Builds OpenAI's response objects (complete responses, chunks of a stream, errors) as dicts for JSON.

In addition to OpenAI's fields, a response has three fields of our own. With `seed` a client can request the same answer
again. `metrics.speculative_decoding` has the speculation statistics of the request. `limits` has the limit of the
answer's tokens, if the client set none. engine/fingerprint.py describes `system_fingerprint`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.openai.answer import Answer, AnswerLogprob, PredictionUsage
from engine.openai.limits import TokenLimit, limits_block
from engine.openai.tool_calls import CallPiece, CallStyle, read_calls
from engine.request import FinishReason, SpeculationStats
from engine.tokenizer import Tokenizer

_Value = TypeVar("_Value")
_LOWEST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI uses this value


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The fields that all chunks of a response share."""

    response_id: str
    created: int  # Unix seconds
    model: str
    seed: int
    limits: tuple[TokenLimit, ...]  # by index of the choice
    fingerprint: str | None = None  # fingerprint of the engine with the request's adapter

    def fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "seed": self.seed,
            **limits_block(self.limits),
        }


def chat_completion(
    head: Head,
    answers: Sequence[Answer],
    *,
    num_prompt_tokens: int,
    num_cached_tokens: int,
    stats: SpeculationStats,
    tokenizer: Tokenizer,
    calls: CallStyle | None = None,
) -> dict[str, Any]:
    """`answers`: by index of the choice. `calls`: format of the answers' tool calls; None: tools can't be called."""
    choices = []
    for index, answer in enumerate(answers):
        message = _message(head, index, answer, calls)
        called = "tool_calls" in message
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": None if answer.logprobs is None else chat_logprobs(answer.logprobs, tokenizer),
                "finish_reason": chat_finish_reason(answer.finish_reason, called=called),
            }
        )
    usage = _usage(answers, num_prompt_tokens, num_cached_tokens)
    return head.fields("chat.completion") | {"choices": choices, "usage": usage, "metrics": metrics_block(stats)}


def text_completion(
    head: Head,
    answers: Sequence[Answer],
    *,
    num_prompt_tokens: int,
    num_cached_tokens: int,
    stats: SpeculationStats,
    tokenizer: Tokenizer,
    calls: CallStyle | None = None,
) -> dict[str, Any]:
    """Like `chat_completion`, but for text completions, which have no tool calls."""
    assert calls is None
    choices = [
        {
            "index": index,
            "text": answer.text,
            "logprobs": None if answer.logprobs is None else text_logprobs(answer.logprobs, tokenizer),
            "finish_reason": str(answer.finish_reason),
        }
        for index, answer in enumerate(answers)
    ]
    usage = _usage(answers, num_prompt_tokens, num_cached_tokens)
    return head.fields("text_completion") | {"choices": choices, "usage": usage, "metrics": metrics_block(stats)}


def chat_chunk(
    head: Head,
    index: int,
    *,
    delta: dict[str, Any],
    finish_reason: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    return head.fields("chat.completion.chunk") | {"choices": [choice]}


def text_chunk(
    head: Head,
    index: int,
    *,
    text: str,
    finish_reason: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
    return head.fields("text_completion") | {"choices": [choice]}


def usage_chunk(head: Head, kind: str, *, usage: dict[str, Any], stats: SpeculationStats) -> dict[str, Any]:
    """Returns the last chunk of a stream whose client requested the usage; the chunk has no choices."""
    return head.fields(kind) | {"choices": [], "usage": usage, "metrics": metrics_block(stats)}


def call_delta(head: Head, index: int, piece: CallPiece) -> dict[str, Any]:
    """Returns the delta of a chunk that begins a tool call or continues its arguments."""
    function: dict[str, Any] = {"arguments": piece.arguments}
    call: dict[str, Any] = {"index": piece.index, "function": function}
    if piece.name is not None:
        function = {"name": piece.name, "arguments": piece.arguments}
        call_id = _call_id(head, index, piece.index)
        call = {"index": piece.index, "id": call_id, "type": "function", "function": function}
    return {"tool_calls": [call]}


def chat_finish_reason(reason: FinishReason, *, called: bool) -> str:
    return "tool_calls" if called and reason is FinishReason.STOP else str(reason)


def usage_block(
    *,
    num_prompt_tokens: int,
    num_completion_tokens: int,
    num_cached_tokens: int,
    num_reasoning_tokens: int,
    predictions: Iterable[PredictionUsage | None] = (),
) -> dict[str, Any]:
    """Returns the `usage` of a response.

    Args:
        num_cached_tokens: prompt tokens found in the prefix cache.
        num_reasoning_tokens: completion tokens that belong to separated reasoning traces, including the markers.
        predictions: of the choices; if all are None, the members for predicted tokens are left out.
    """
    details = {"reasoning_tokens": num_reasoning_tokens}
    if used := [prediction for prediction in predictions if prediction is not None]:
        details["accepted_prediction_tokens"] = sum(prediction.accepted for prediction in used)
        details["rejected_prediction_tokens"] = sum(prediction.rejected for prediction in used)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
        "completion_tokens_details": details,
    }


def metrics_block(stats: SpeculationStats) -> dict[str, Any]:
    """Returns the `metrics` of a response.

    The histogram has num_spec_tokens + 1 entries, because aiperf ignores the statistics otherwise.

    Source of the field names and the histogram's length: vLLM pull request 48915.
    """
    histogram = stats.acceptance_histogram
    longest = max((accepted for accepted, steps in enumerate(histogram) if steps), default=0)
    num_spec_tokens = max(stats.num_spec_tokens, longest)  # a drafter that replaced another may draft deeper
    return {
        "speculative_decoding": {
            "mean_acceptance_length": round(stats.mean_acceptance_length, 4),
            "draft_acceptance_rate": round(stats.draft_acceptance_rate, 4),
            "acceptance_histogram": (histogram + [0] * (num_spec_tokens + 1))[: num_spec_tokens + 1],
            "num_spec_steps": stats.num_spec_steps,
            "num_accepted_draft_tokens": stats.num_accepted_draft_tokens,
            "num_draft_tokens": stats.num_draft_tokens,
            "num_spec_tokens": num_spec_tokens,
        }
    }


def merged_stats(parts: Iterable[SpeculationStats]) -> SpeculationStats:
    """Merges the statistics of several choices."""
    total = SpeculationStats()
    for part in parts:
        total.num_spec_steps += part.num_spec_steps
        total.num_draft_tokens += part.num_draft_tokens
        total.num_accepted_draft_tokens += part.num_accepted_draft_tokens
        total.num_spec_tokens = max(total.num_spec_tokens, part.num_spec_tokens)
        length = max(len(total.acceptance_histogram), len(part.acceptance_histogram))
        total.acceptance_histogram += [0] * (length - len(total.acceptance_histogram))
        for i, count in enumerate(part.acceptance_histogram):
            total.acceptance_histogram[i] += count
    return total


def error_body(
    message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def chat_logprobs(entries: Sequence[AnswerLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    content = [
        _token(entry.token.token_id, entry.token.logprob, tokenizer)
        | {"top_logprobs": [_token(token_id, logprob, tokenizer) for token_id, logprob in entry.token.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def text_logprobs(entries: Sequence[AnswerLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "tokens": [_name(entry.token.token_id, tokenizer) for entry in entries],
        "token_logprobs": [_known(entry, finite(entry.token.logprob)) for entry in entries],
        "top_logprobs": [
            _known(
                entry, {_name(token_id, tokenizer): finite(logprob) for token_id, logprob in reversed(entry.token.top)}
            )
            for entry in entries  # likeliest last, so that of two tokens with equal text the likelier one remains
        ],
        "text_offset": [entry.text_offset for entry in entries],
    }


def _usage(answers: Sequence[Answer], num_prompt_tokens: int, num_cached_tokens: int) -> dict[str, Any]:
    return usage_block(
        num_prompt_tokens=num_prompt_tokens,
        num_completion_tokens=sum(answer.num_tokens for answer in answers),
        num_cached_tokens=num_cached_tokens,
        num_reasoning_tokens=sum(answer.num_reasoning_tokens for answer in answers),
        predictions=[answer.prediction for answer in answers],
    )


def _message(head: Head, index: int, answer: Answer, style: CallStyle | None) -> dict[str, Any]:
    content, calls = (answer.text, []) if style is None else read_calls(style, answer.text)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.reasoning is not None:
        message |= {"content": content or (None if answer.reasoning else ""), "reasoning_content": answer.reasoning}
    if calls:
        message["content"] = content or None
        message["tool_calls"] = [
            {
                "id": _call_id(head, index, number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(calls)
        ]
    return message


def _call_id(head: Head, index: int, number: int) -> str:
    """Returns an id that depends only on the response's id, the choice and the number of the call."""
    return f"call_{head.response_id.partition('-')[2]}_{index}_{number}"


def _token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": _name(token_id, tokenizer),
        "logprob": finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _name(token_id: int, tokenizer: Tokenizer) -> str:
    return tokenizer.token_bytes(token_id).decode(errors="replace")


def _known(entry: AnswerLogprob, value: _Value) -> _Value | None:
    """Returns the value; None for the first token of an echoed prompt, which has no log-probability."""
    return None if math.isnan(entry.token.logprob) else value


def finite(logprob: float) -> float:
    """Returns the log-probability; -infinity is replaced by the lowest value that responses use."""
    return max(logprob, _LOWEST_LOGPROB)
