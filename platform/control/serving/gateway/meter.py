"""Reads the engine's token counts from the answers that the gateway passes on.

An answer that is not streamed has the counts in `usage`. A stream has them in its last chunk, if the caller requested
that; but a caller who disconnects earlier never gets this chunk. To count the tokens of an interrupted stream as well,
the gateway requests `usage` in every chunk (`completion_request`). It removes `usage` from the chunks for which the
caller did not request it, because clients add up all usage that they see.

On routes without OpenAI's option for usage, the engine sends usage in comments of the event stream. The gateway
requests these comments by a header and removes them from the stream.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from control.billing.usage.services import Tokens
from control.serving.gateway.completion_request import UsageOptions

Count = Callable[[Tokens], Awaitable[None]]

_END_OF_EVENT = b"\n\n"
_DATA = b"data: "
_COMMENT = b": "


def tokens_of(answer: bytes) -> Tokens | None:
    """Returns the usage in an answer or in one chunk of a stream; None if there is none."""
    try:
        counts = _counts(json.loads(answer)["usage"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    # Other values could not be stored. The usage would then not be recorded, and the reservation not be released.
    if any(type(count) is not int or count < 0 for count in counts):
        return None
    return Tokens(input=counts[0], output=counts[1], cached=counts[2])


def without_comment(event: bytes) -> tuple[bytes, bytes]:
    """Returns the comment at the beginning of an event, without its colon, and the rest of the event."""
    if not event.startswith(_COMMENT):
        return b"", event
    comment, _, rest = event.removeprefix(_COMMENT).partition(b"\n")
    return comment, rest


async def metered(
    stream: AsyncGenerator[bytes], *, options: UsageOptions | None, count: Count
) -> AsyncGenerator[bytes]:
    """Passes events on. When the engine or the caller ends the stream, calls `count` with the last usage in it.

    Args: options: the caller's options for usage; None: usage comes in comments.
    """
    last = b""
    try:
        async with aclosing(stream):  # when the caller ends this stream, the engine's stream is closed at once
            async for events in stream:
                passed_on = []
                for event in events.removesuffix(_END_OF_EVENT).split(_END_OF_EVENT):
                    usage, visible = without_comment(event) if options is None else _visible(event, options)
                    last = usage or last
                    if visible is not None:
                        passed_on.append(visible + _END_OF_EVENT)
                if passed_on:
                    yield b"".join(passed_on)
    finally:
        await count(tokens_of(last) or Tokens())


def _counts(usage: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Returns the number of the prompt's tokens, of the answer's tokens, and of the prompt's cached tokens.

    `usage` has other names in the Messages API (the first case below), in chat completions and in the Responses API.
    """
    if "cache_read_input_tokens" in usage:
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, usage["output_tokens"], cached
    for prompt, answer in (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")):
        if prompt in usage:
            details = usage.get(f"{prompt}_details") or {}
            return usage[prompt], usage[answer], details.get("cached_tokens") or 0
    raise KeyError("usage has no tokens of the prompt")


def _visible(event: bytes, options: UsageOptions) -> tuple[bytes, bytes | None]:
    """Returns the event's data (empty if it has no usage), and the event to pass on (None: nothing is passed on)."""
    data = event.removeprefix(_DATA) if b'"usage"' in event else b""
    return data, _without_extra_usage(event, options)


def _without_extra_usage(event: bytes, options: UsageOptions) -> bytes | None:
    """Returns the event to pass on; None if the event contains only usage that the caller did not request."""
    if options.in_every_chunk or b'"usage"' not in event:
        return event
    try:
        chunk = json.loads(event.removeprefix(_DATA))
    except ValueError:
        return event
    if not isinstance(chunk, dict) or "usage" not in chunk:
        return event
    if not chunk.get("choices"):
        return event if options.at_end else None
    if options.at_end:
        chunk["usage"] = None  # OpenAI sends the key in every chunk, null in all but the last
    else:
        del chunk["usage"]
    return _DATA + json.dumps(chunk, separators=(",", ":")).encode()  # ASCII: some clients split lines at U+2028
