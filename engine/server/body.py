"""Reads a request's body as standard JSON, with limits on size, time and nesting."""

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import Request

from engine.fields import InvalidRequest
from engine.openai.nesting import check_nesting

BODY_SECONDS = 30.0  # a slower client would occupy memory for too long


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Reads the body. Raises: InvalidRequest: 413 if it exceeds `max_bytes`, 408 if it is not complete in time."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(request, max_bytes)
    except TimeoutError as error:
        message = f"the body must be complete within {BODY_SECONDS:.0f} s"
        raise InvalidRequest(message, code="request_timeout", status=408) from error


def parse_json(raw: bytes) -> dict[str, Any]:
    """Parses the body. Raises: InvalidRequest: it is not a JSON object, or is nested too deeply."""
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
        if b"\\ud" in raw.lower():  # an unpaired escaped surrogate is valid JSON, but not valid text
            json.dumps(body, ensure_ascii=False).encode()
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply", code="invalid_json") from error
    except ValueError as error:
        raise InvalidRequest(f"the body must be JSON: {str(error)[:200]}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {type(body).__name__}", code="invalid_json")
    check_nesting(body)
    return body


async def _read(request: Request, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    num_bytes = 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise _too_large(num_bytes, max_bytes)
        parts.append(part)
    return b"".join(parts)


def _too_large(num_bytes: int, max_bytes: int) -> InvalidRequest:
    message = f"the body may have at most {max_bytes} bytes, got {num_bytes} or more"
    return InvalidRequest(message, code="request_too_large", status=413)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
