"""Compares two answers to the same request, and makes the second request from the first one and its answer.

Two answers are equal if each choice has the same text, reasoning, tool calls, token ids (if the request asked for them)
and finish reason, and if they have the same number of tokens. Ids, times and log-probabilities are not compared, nor
is which tokens were accepted (`return_acceptance`), because two speculators never draft the same tokens.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from control.billing.usage.services import Tokens
from control.serving.gateway.meter import tokens_of

_NOT_COMPARED = frozenset({"id", "created", "logprobs", "role", "type", "acceptance"})
_DATA = b"data: "


class NotComparable(Exception):
    """The answers cannot be compared, because an answer is incomplete or its seed is unknown."""


def repeated_request(body: bytes, answer: bytes) -> bytes:
    """Returns the body with the seed of the answer. Another engine must then give the same answer.

    If a request has no seed, the engine draws one and names it in the answer.
    Args: answer: the answer to `body`. Raises: NotComparable: the request samples, and its seed is unknown.
    """
    request = _parsed(body)
    if request.get("seed") is None and request.get("temperature") != 0:
        seeds = [part["seed"] for part in _parts(answer) if isinstance(part.get("seed"), int)]
        if not seeds:
            raise NotComparable("the answer does not name its seed")
        request["seed"] = seeds[0]
    return json.dumps(request).encode()


def are_equal(first: bytes, second: bytes) -> bool:
    """Raises: NotComparable: an answer has no choices, ended with an error, or has another form than the engine's."""
    try:
        return _outcome(first) == _outcome(second)
    except (TypeError, AttributeError) as error:
        raise NotComparable("unknown form") from error


def tokens_in(answer: bytes) -> Tokens:
    """Returns the last usage in a whole answer or in a stream."""
    events = reversed(answer.split(b"\n\n"))
    return next((found for event in events if (found := tokens_of(event.removeprefix(_DATA)))), Tokens())


def _outcome(answer: bytes) -> dict[str, Any]:
    """Joins the parts of the answer. Returns the choices by index, and the number of their tokens."""
    choices: dict[str, Any] = {}
    num_tokens = None
    for part in _parts(answer):
        if "error" in part:
            raise NotComparable("the answer ended with an error")
        _join(choices, "choices", _without_deltas(part.get("choices") or []))
        num_tokens = (part.get("usage") or {}).get("completion_tokens", num_tokens)
    if not choices.get("choices"):
        raise NotComparable("the answer has no choices")
    return {**choices, "num_tokens": num_tokens}


def _without_deltas(choices: list[Any]) -> list[Any]:
    """The chunks of a stream have `delta` where a whole answer has `message`."""
    return [{("message" if name == "delta" else name): each for name, each in one.items()} for one in choices]


def _join(into: dict[str, Any], name: str, value: Any) -> None:
    """Appends a text or list to the earlier parts of the same member. Objects in lists are joined by their `index`."""
    if name in _NOT_COMPARED or value is None or value == []:
        return
    if isinstance(value, str):
        into[name] = into.get(name, "") + value
    elif isinstance(value, Mapping):
        inner = into.setdefault(name, {})
        for member, each in value.items():
            _join(inner, member, each)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        inner = into.setdefault(name, {})
        for position, each in enumerate(value):
            _join(inner, str(each.get("index", position)), each)
    elif isinstance(value, list):
        into[name] = into.get(name, []) + value
    else:
        into[name] = value


def _parts(answer: bytes) -> Iterator[dict[str, Any]]:
    """Yields the object of a whole answer, or the objects of a stream's events."""
    if not answer.startswith(_DATA):
        yield _parsed(answer)
        return
    for event in answer.split(b"\n\n"):
        data = event.removeprefix(_DATA)
        if data.strip() and data != b"[DONE]":
            yield _parsed(data)


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotComparable("not JSON") from error
    if not isinstance(value, dict):
        raise NotComparable("not a JSON object")
    return value
