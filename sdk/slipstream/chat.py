"""Requests to a deployment: chat completions and text completions, with or without streaming."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from slipstream.drivers import Exchange, Item, Items, Steps, iteration, procedure
from slipstream.errors import stream_error
from slipstream.http import D, Http, Lines, Resource, connection_error
from slipstream.records import parsed
from slipstream.sse import next_data
from slipstream.types import Completion


class Chat(Resource[D]):
    @procedure
    def create(self, /, *, model: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Steps[Completion]:
        """Args: options: the request's other fields, such as `max_tokens`, `temperature`, `tools`."""
        return self.http.post(Completion, "chat/completions", {"model": model, "messages": list(messages), **options})

    @iteration
    def stream(self, /, *, model: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Items[Completion]:
        """Yield the answer in pieces; the last piece has `usage` and `metrics` but no text.

        Raises:
            APIStreamError: the service aborted the answer.
            APIConnectionError: the connection broke. The pieces so far are valid; the rest is not requested again.
        """
        return _streamed(self.http, "chat/completions", {"model": model, "messages": list(messages), **options})


class Completions(Resource[D]):
    """Completions of a prompt to which no chat template is applied."""

    @procedure
    def create(self, /, *, model: str, prompt: str | Sequence[int], **options: Any) -> Steps[Completion]:
        """Args: prompt: text, or token ids."""
        return self.http.post(Completion, "completions", {"model": model, "prompt": prompt, **options})

    @iteration
    def stream(self, /, *, model: str, prompt: str | Sequence[int], **options: Any) -> Items[Completion]:
        """See `Chat.stream`."""
        return _streamed(self.http, "completions", {"model": model, "prompt": prompt, **options})


def _streamed(http: Http, path: str, body: Mapping[str, Any]) -> Items[Completion]:
    json_body = {"stream_options": {"include_usage": True}, **body, "stream": True}
    exchange = Exchange(method="POST", path=path, options={"json": json_body}, stream=True)
    source = Lines((yield from http.send(exchange)))
    try:
        while (data := (yield from next_data(source))) is not None and data != "[DONE]":
            values = json.loads(data)
            if "error" in values:
                raise stream_error(values["error"])
            yield Item(parsed(Completion, values))
    except httpx2.TransportError as error:
        raise connection_error(exchange, error) from error
    if data is None:
        raise stream_error({"message": "the answer ended without [DONE]", "code": "upstream_terminated"})
