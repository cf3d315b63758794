"""Reads the engine's token counts from the answers that the gateway passes on.

An answer that is not streamed has the counts in `usage`. A stream has them in its last chunk, if the caller requested
that; but a caller who disconnects earlier never gets this chunk. To count the tokens of an interrupted stream as well,
the gateway requests `usage` in every chunk (`completion_request`). It removes `usage` from the chunks for which the
caller did not request it, because clients add up all usage that they see.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from control.billing.usage.services import Tokens
from control.serving.gateway.completion_request import UsageOptions

Count = Callable[[Tokens], Awaitable[None]]

_END_OF_EVENT = b"\n\n"
_DATA = b"data: "


def tokens_of(answer: bytes) -> Tokens | None:
    """The usage in an answer or in one chunk of a stream; None if it contains no usage."""
    try:
        usage = json.loads(answer)["usage"]
        details = usage.get("prompt_tokens_details") or {}
        counts = usage["prompt_tokens"], usage["completion_tokens"], details.get("cached_tokens") or 0
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    # Any other value would make the end of the request fail, whose reservation would then be renewed for ever.
    if any(type(count) is not int or count < 0 for count in counts):
        return None
    return Tokens(input=counts[0], output=counts[1], cached=counts[2])


async def metered(stream: AsyncGenerator[bytes], *, options: UsageOptions, count: Count) -> AsyncGenerator[bytes]:
    """Passes events on. When the engine or the caller ends the stream, calls `count` with the last usage in it."""
    last = b""
    try:
        async with aclosing(stream):  # when the caller ends this stream, the engine's ends at once
            async for events in stream:
                passed_on = []
                for event in events.removesuffix(_END_OF_EVENT).split(_END_OF_EVENT):
                    if b'"usage"' in event:
                        last = event
                    if (visible := _without_extra_usage(event, options)) is not None:
                        passed_on.append(visible + _END_OF_EVENT)
                if passed_on:
                    yield b"".join(passed_on)
    finally:
        tokens = tokens_of(last.removeprefix(_DATA))
        await count(tokens or Tokens())


def _without_extra_usage(event: bytes, options: UsageOptions) -> bytes | None:
    """The event to pass on; None if it contains only usage that the caller did not request."""
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
