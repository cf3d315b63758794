"""Counts the tokens of what passes, as the engine counted them.

An answer says it in `usage`. A stream says it at its end only to callers who ask, and never to those who hang up
before. So the engine is asked to say it in every chunk, and the last chunk, which is nothing but usage, is kept back
from callers who did not ask. What was streamed is counted also when nobody waits for the end.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from control.usage.services import Tokens

Count = Callable[[Tokens], Awaitable[None]]

_END_OF_EVENT = b"\n\n"
_DATA = b"data: "
_ONLY_USAGE = (b'"choices":[]', b'"choices": []')


def asks_for_usage(body: dict[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def metered_request(body: dict[str, Any]) -> bytes | None:
    """The body of a stream, asking for usage in every chunk. None: send what came, which is no stream or is wrong."""
    options = body.get("stream_options")
    options = {} if options is None else options
    if body.get("stream") is not True or not isinstance(options, dict):
        return None
    asked = {"include_usage": True, "continuous_usage_stats": True}
    if any(not isinstance(options.get(name), bool | None) for name in asked):
        return None
    return json.dumps({**body, "stream_options": {**options, **asked}}).encode()


def tokens_of(answer: bytes) -> Tokens | None:
    """Of an answer or of one chunk. None: it does not say."""
    try:
        usage = json.loads(answer)["usage"]
        details = usage.get("prompt_tokens_details") or {}
        return Tokens(
            input=usage["prompt_tokens"], output=usage["completion_tokens"], cached=details.get("cached_tokens", 0)
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


async def metered(stream: AsyncIterator[bytes], *, shows_usage: bool, count: Count) -> AsyncIterator[bytes]:
    """Passes whole events on; at the end, whoever brings it about, `count` gets the last figures there were."""
    last = b""
    try:
        async for events in stream:
            shown = []
            for event in events.removesuffix(_END_OF_EVENT).split(_END_OF_EVENT):
                if b'"usage"' in event:
                    last = event
                if shows_usage or not any(mark in event for mark in _ONLY_USAGE):
                    shown.append(event + _END_OF_EVENT)
            if shown:
                yield b"".join(shown)
    finally:
        tokens = tokens_of(last.removeprefix(_DATA))
        await count(tokens or Tokens())
