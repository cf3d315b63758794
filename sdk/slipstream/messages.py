"""Requests of Anthropic's Messages API to a deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Steps, procedure
from slipstream.http import D, Resource
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Record):
    """An answer of the Messages API."""

    id: str
    model: str
    content: Sequence[Mapping[str, Any]]  # blocks of the types "thinking", "text" and "tool_use"
    stop_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None  # as in `Completion`

    @property
    def text(self) -> str:
        """The text of all text blocks."""
        return "".join(block.get("text") or "" for block in self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTokens(Record):
    """The size of a message's prompt."""

    input_tokens: int


class Messages(Resource[D]):
    """For streams, use the `anthropic` package, which has a type for each event."""

    @procedure
    def create(
        self, /, *, model: str, messages: Sequence[Mapping[str, Any]], max_tokens: int, **options: Any
    ) -> Steps[Message]:
        """Args: options: the request's other fields, such as `system`."""
        body = {"model": model, "messages": messages, "max_tokens": max_tokens, **options}
        return self.http.post(Message, "messages", body)

    @procedure
    def count_tokens(
        self, /, *, model: str, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> Steps[MessageTokens]:
        """Count the tokens of a message's prompt. No answer is computed, so the request costs nothing.

        Args: options: the request's other fields that the prompt contains, such as `system` and `tools`.
        """
        return self.http.post(MessageTokens, "messages/count_tokens", {"model": model, "messages": messages, **options})
