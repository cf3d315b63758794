"""Requests of OpenAI's Responses API to a deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Steps, procedure
from slipstream.http import D, Resource
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Response(Record):
    """An answer of the Responses API."""

    id: str
    model: str
    status: str  # "completed", or "incomplete" if the answer reached its limit
    output: Sequence[Mapping[str, Any]]
    usage: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None  # as in `Completion`

    @property
    def text(self) -> str:
        """The text of all messages in the output."""
        parts = [part for item in self.output for part in item.get("content") or ()]
        return "".join(part.get("text") or "" for part in parts)


class Responses(Resource[D]):
    """For streams, use the `openai` package, which has a type for each event."""

    @procedure
    def create(self, /, *, model: str, input: str | Sequence[Mapping[str, Any]], **options: Any) -> Steps[Response]:  # noqa: A002  # OpenAI's name
        """Args: input: a text or items; options: the request's other fields, such as `instructions`."""
        return self.http.post(Response, "responses", {"model": model, "input": input, **options})
