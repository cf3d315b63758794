"""Reads from the body of a completion or audit request what the gateway must know of the request.

Uses the standard library only, because `large_bodies` also runs this file as a small process:

    python -m control.serving.gateway.completion_request PATH CPU_SECONDS MEMORY_BYTES < BODY

prints a line of JSON, and then the body to send to the engine.
"""

import hashlib
import json
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from control.core.api import strict_json
from control.serving.gateway.wire import WIRES

_TOOL_TYPES = ("function_call", "function_call_output", "tool_use", "tool_result")
_OPENING_LENGTH = 2_000  # characters or token ids of a prompt
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")  # parameters that limit an answer's tokens


class InvalidRequest(Exception):
    """The request is refused with status 400. `args` has the error's message, its code and the parameter's name."""

    def __init__(self, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message, code, param)


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """Says in which chunks of a stream the caller requested usage."""

    at_end: bool
    in_every_chunk: bool

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        options = body.get("stream_options")
        known = options if isinstance(options, dict) else {}
        at_end = known.get("include_usage") is True
        return cls(at_end, at_end and known.get("continuous_usage_stats") is True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    model: str
    usage: UsageOptions
    num_prompts: int
    num_bytes: int  # upper bound of the bytes of the body's texts after normalisation
    num_parts: int  # messages or items, and the parts of their contents; 0: not a chat
    has_tools: bool  # whether the request defines tools, or an earlier message has a tool's call or result
    num_choices: int  # for each prompt
    max_tokens: int | None  # None: not given, or invalid
    opening: str  # a hash of the beginning, which is the same for all requests of a conversation
    is_audit: bool = False  # whether the body contains an answer and its `request`, which the engine checks

    @classmethod
    def of(cls, body: Mapping[str, Any], *, num_bytes: int, is_audit: bool = False) -> Self:
        """Raises: InvalidRequest: `model` is not a string."""
        model, usage = _model(body), UsageOptions.of(body)
        if is_audit:
            request = body.get("request")
            body = request if isinstance(request, dict) else {}
        messages = _messages(body)
        return cls(
            model=model,
            usage=usage,
            is_audit=is_audit,
            num_prompts=_num_prompts(body),
            num_bytes=num_bytes,
            num_parts=sum(1 + len(_parts(message)) for message in messages),
            has_tools=bool(body.get("tools")) or any(map(_mentions_tools, messages)),
            num_choices=_positive(body.get("n")) or 1,
            max_tokens=next((limit for name in _LIMITS if (limit := _positive(body.get(name)))), None),
            opening=_opening(body),
        )


def read(raw: bytes, path: str) -> tuple[CompletionRequest, bytes]:
    """Parses a body. Returns the request, and the body that is sent to the engine. Raises: InvalidRequest."""
    try:
        body = strict_json.loads(raw)
    except strict_json.NotJson as error:
        raise InvalidRequest(f"The request body must be JSON{error}.", "invalid_json") from error
    if not isinstance(body, dict):
        raise InvalidRequest("The request body must be a JSON object.", "invalid_json")
    wire = WIRES[path]
    try:
        sent = metered_request(body) if wire.has_usage_option else None
        return CompletionRequest.of(body, num_bytes=_most_text_bytes(raw), is_audit=wire.is_audit), sent or raw
    except RecursionError as error:  # writing JSON needs more of the stack than reading it
        raise InvalidRequest("The request body must be JSON, nested less deeply.", "invalid_json") from error


def metered_request(body: Mapping[str, Any]) -> bytes | None:
    """Returns the body of a request for a stream, changed so that every chunk has usage.

    Returns None if the body must be sent unchanged, because it does not request a stream or its options are invalid.
    """
    options = body.get("stream_options")
    options = {} if options is None else options
    if body.get("stream") is not True or not isinstance(options, dict):
        return None
    usage_options = {"include_usage": True, "continuous_usage_stats": True}
    if any(not isinstance(options.get(name), bool | None) for name in usage_options):
        return None
    return json.dumps({**body, "stream_options": {**options, **usage_options}}).encode()


def _model(body: Mapping[str, Any]) -> str:
    model = body.get("model")
    if model is None:
        raise InvalidRequest("model: this parameter is required.", "missing_required_parameter", "model")
    if not isinstance(model, str) or not strict_json.is_text(model):
        raise InvalidRequest("model must be a string.", "invalid_type", "model")
    return model


def _most_text_bytes(raw: bytes) -> int:
    """Returns the most bytes that the body's texts can have after a tokenizer has normalised them.

    Normalisation (NFC) at most triples the bytes of characters beyond ASCII.
    """
    num_not_ascii = len(raw.translate(None, delete=bytes(range(128))))
    return len(raw) + 2 * num_not_ascii


def _messages(body: Mapping[str, Any]) -> list[Any]:
    """Returns the messages or the input items of a request. Instructions and a plain text count as one message each."""
    given, system = body.get("input"), body.get("system")
    texts = [text for text in (body.get("instructions"), given, system) if isinstance(text, str)]
    return texts + _items(system) + _items(body.get("messages")) + _items(given)


def _opening(body: Mapping[str, Any]) -> str:
    """Returns a hash of the instructions and the user's first message, or of the beginning of the prompt."""
    given, prompt = body.get("input"), body.get("prompt")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _items(given)
    turns = [*_items(body.get("messages")), *items]
    num_before = next((i for i, turn in enumerate(turns) if _member(turn, "role") == "user"), 0)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):  # several prompts
        prompt = prompt[0]
    beginning = prompt[:_OPENING_LENGTH] if isinstance(prompt, str | list) else None
    opening = [body.get("instructions"), body.get("system"), turns[: num_before + 1], beginning]
    return hashlib.sha256(json.dumps(opening).encode()).hexdigest()[:16]


def _parts(message: object) -> list[Any]:
    parts = _items(_member(message, "content")) + _items(_member(message, "output"))
    return parts + [inner for part in parts for inner in _items(_member(part, "content"))]


def _mentions_tools(message: object) -> bool:
    blocks = [message, *_items(_member(message, "content"))]
    return bool(_member(message, "tool_calls")) or any(_member(block, "type") in _TOOL_TYPES for block in blocks)


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _member(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _positive(value: object) -> int | None:
    """Returns `value` if it is a positive integer, else None: the engine will refuse the value or use its default."""
    return value if isinstance(value, int) and value > 0 else None


def _num_prompts(body: Mapping[str, Any]) -> int:
    """A list of strings or of lists of token ids is several prompts; a list of token ids is one."""
    prompts = body.get("prompt")
    if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list):
        return len(prompts)
    return 1


def main(path: str, cpu_seconds: int, memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    try:
        request, body = read(sys.stdin.buffer.read(), path)
    except InvalidRequest as error:
        sys.stdout.buffer.write(json.dumps({"error": error.args}).encode())
        return
    sys.stdout.buffer.write(json.dumps({"request": asdict(request)}).encode() + b"\n" + body)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
