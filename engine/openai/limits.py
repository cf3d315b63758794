"""Decides how many tokens an answer may have.

As in vLLM, a client's limit that does not fit into the context is refused. Without a limit, the answer may have as many
tokens as fit, and the response's field `limits` says how many these are and what set the limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from engine.fields import InvalidRequest


class LimitSource(StrEnum):
    REQUEST = "request"
    CONTEXT = "context"
    MODEL = "generation_config"


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """max_tokens: maximum number of tokens of an answer, at least 1. source: what set this limit."""

    max_tokens: int
    source: LimitSource


def token_limit(
    requested: int | None,
    *,
    param: str,
    num_prompt_tokens: int,
    max_seq_len: int,
    cap: int | None = None,
    default: int | None = None,
) -> TokenLimit:
    """Returns the limit of an answer to a prompt that is shorter than the context.

    Args:
        param: name of the parameter in which the client sends `requested`.
        cap: limit of the job to which the request belongs; a higher limit of the client is lowered to it.
        default: limit of the model's configuration, for requests without a limit.

    Raises: InvalidRequest: prompt and answer would exceed the context.
    """
    room = max_seq_len - num_prompt_tokens
    if requested is not None and cap is not None:
        requested = min(requested, cap)
    if requested is None:
        limit = TokenLimit(room, LimitSource.CONTEXT)
        if default is not None and default < room:
            limit = TokenLimit(default, LimitSource.MODEL)
        return limit if cap is None else replace(limit, max_tokens=min(limit.max_tokens, cap))
    if requested > room:
        raise InvalidRequest(
            f"{param} is {requested}, but the context of {max_seq_len} tokens leaves {room} for the answer after a "
            f"prompt of {num_prompt_tokens}: send {param} of at most {room}, or leave it out for an answer that may "
            "fill the context",
            param=param,
            code="max_tokens_too_large",
        )
    return TokenLimit(requested, LimitSource.REQUEST)


def limits_block(limits: Sequence[TokenLimit]) -> dict[str, Any]:
    """Returns the response's field `limits`, for the choice with the lowest limit; {} if the client set this limit."""
    lowest = min(limits, key=lambda limit: limit.max_tokens)
    if lowest.source is LimitSource.REQUEST:
        return {}
    return {"limits": {"max_tokens": lowest.max_tokens, "set_by": str(lowest.source)}}
