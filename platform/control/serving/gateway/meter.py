"""Counts the tokens of what passes, as the engine counted them.

An answer says it in `usage`. A stream says it at its end only to callers who ask, and never to those who hang up
before. So the engine is asked to say it in every chunk, and what the caller did not ask for is taken out again: clients
add up whatever usage they see. What was streamed is counted also when nobody waits for the end.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from control.billing.usage.services import Tokens

Count = Callable[[Tokens], Awaitable[None]]

_END_OF_EVENT = b"\n\n"
_DATA = b"data: "


@dataclass(frozen=True, slots=True)
class Wish:
    """Where the caller of a stream wants usage."""

    at_end: bool
    in_every_chunk: bool

    @classmethod
    def of(cls, body: dict[str, Any]) -> Self:
        options = body.get("stream_options")
        known = options if isinstance(options, dict) else {}
        at_end = known.get("include_usage") is True
        return cls(at_end, at_end and known.get("continuous_usage_stats") is True)


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


async def metered(stream: AsyncIterator[bytes], *, wish: Wish, count: Count) -> AsyncIterator[bytes]:
    """Passes whole events on; at the end, whoever brings it about, `count` gets the last figures there were."""
    last = b""
    try:
        async for events in stream:
            shown = []
            for event in events.removesuffix(_END_OF_EVENT).split(_END_OF_EVENT):
                if b'"usage"' in event:
                    last = event
                if (wished := _as_wished(event, wish)) is not None:
                    shown.append(wished + _END_OF_EVENT)
            if shown:
                yield b"".join(shown)
    finally:
        tokens = tokens_of(last.removeprefix(_DATA))
        await count(tokens or Tokens())


def _as_wished(event: bytes, wish: Wish) -> bytes | None:
    """None: the chunk is nothing but usage that nobody asked for."""
    if wish.in_every_chunk or b'"usage"' not in event:
        return event
    try:
        chunk = json.loads(event.removeprefix(_DATA))
    except ValueError:
        return event
    if not isinstance(chunk, dict) or "usage" not in chunk:
        return event
    if not chunk.get("choices"):
        return event if wish.at_end else None
    if wish.at_end:
        chunk["usage"] = None  # OpenAI's have the key all the way
    else:
        del chunk["usage"]
    return _DATA + json.dumps(chunk, separators=(",", ":")).encode()  # in ASCII: some take U+2028 for the end of a line
