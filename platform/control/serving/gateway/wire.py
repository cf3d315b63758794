"""The routes to an endpoint, and how their streams differ.

Uses the standard library only, like `completion_request`, which also runs in a process of its own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    path: str
    last_events: tuple[bytes, ...] = ()  # how the last event of a complete stream begins
    failed_events: tuple[bytes, ...] = (b'data: {"error"', b"event: error\n", b"event: response.failed\n")
    has_usage_option: bool = False  # whether streams have OpenAI's `stream_options`; if not, usage comes in comments
    is_captured: bool = False  # whether a batch can answer the same body
    is_audit: bool = False  # whether the route audits an answer
    is_free: bool = False  # whether no usage is recorded, because the model computes nothing
    is_anthropics: bool = False  # whether errors have Anthropic's shape

    def error_body(self, error: Mapping[str, Any], *, status: int | None = None) -> dict[str, Any]:
        """Returns the body of an error in the form of this route.

        Args: error: OpenAI's error object. status: of the response; None: the error is an event of a stream.
        """
        if not self.is_anthropics:
            return {"error": error}
        kind = "api_error" if error["type"] == "server_error" else error["type"]
        return {"type": "error", "error": {**error, "type": _ANTHROPICS_TYPES.get(status, kind)}}

    def error_event(self, error: Mapping[str, Any]) -> bytes:
        """Returns the last event of a stream that cannot be completed. Args: error: OpenAI's error object."""
        if self.is_anthropics:
            return b"event: error\n" + _event(self.error_body(error))
        if self.has_usage_option:
            return _event({"error": error})
        # A client of the Responses API expects the members of the error at the top level as well.
        members = {name: error[name] for name in ("code", "message", "param")}
        return b"event: error\n" + _event({"type": "error", "sequence_number": 0, **members, "error": error})


_ANTHROPICS_TYPES: Mapping[int | None, str] = {
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_CHUNKS = (b"data: [DONE]", b'data: {"error"')
_RESPONSE_EVENTS = (
    b"event: response.completed\n",
    b"event: response.incomplete\n",
    b"event: response.failed\n",
    b"event: error\n",
)
_MESSAGE_EVENTS = (b"event: message_stop\n", b"event: error\n")
WIRES: Mapping[str, Wire] = {
    wire.path: wire
    for wire in (
        Wire(path="/v1/chat/completions", last_events=_CHUNKS, has_usage_option=True, is_captured=True),
        Wire(path="/v1/completions", last_events=_CHUNKS, has_usage_option=True, is_captured=True),
        Wire(path="/v1/responses", last_events=_RESPONSE_EVENTS),
        Wire(path="/v1/messages", last_events=_MESSAGE_EVENTS, is_anthropics=True),
        Wire(path="/v1/messages/count_tokens", is_anthropics=True, is_free=True),  # has no streams
        Wire(path="/v1/audit", is_audit=True),  # has no streams
    )
}


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
