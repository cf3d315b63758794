"""Errors in Anthropic's shape. They keep the members `param` and `code` of OpenAI's errors, which Anthropic lacks."""

from collections.abc import Mapping
from typing import Any

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def message_error(error: Mapping[str, Any], *, status: int | None = None) -> dict[str, Any]:
    """Returns an error in Anthropic's shape.

    Args:
        error: OpenAI's error object.
        status: HTTP status of the response; None: the error is an event of a stream.
    """
    kind = "api_error" if error["type"] == "server_error" else error["type"]
    return {"type": "error", "error": {**error, "type": kind if status is None else _TYPES.get(status, kind)}}
