"""Strict parsing of JSON request bodies. Python's parser accepts the following input, but databases and clients do not:

refused with `invalid_json`     NaN and Infinity, numbers too large for a float (1e999), excessive nesting
refused with `invalid_value`    strings with lone surrogates or zero bytes, which PostgreSQL cannot store

Python's parser holds the interpreter's lock until it ends, so a large body would stop all other requests of the
process. Therefore bodies of more than `MAX_JSON_BYTES` are refused. (The gateway parses its bodies in other processes.)
"""

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.parsers import BaseParser

from control.core.api import strict_json
from control.core.api.body_limit import too_large
from control.core.api.errors import ApiError

MAX_DEPTH = 64
MAX_JSON_BYTES = 256 * 1024  # parsing takes at most 20 ms (a body of empty lists); a body of text takes 1 ms


def parse_json(raw: bytes) -> Any:
    """Parses a body without checking its strings. Raises: ApiError: 400."""
    try:
        return strict_json.loads(raw)
    except strict_json.NotJson as error:
        raise ApiError(400, f"The request body must be JSON{error}.", "invalid_json") from error


class StrictJsonParser(BaseParser):
    """Parser for rest_framework. It ignores the charset of the Content-Type header, because JSON is UTF-8."""

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        raw = stream.read(MAX_JSON_BYTES + 1)
        if len(raw) > MAX_JSON_BYTES:
            raise too_large(MAX_JSON_BYTES)
        value = parse_json(raw)
        _check(value, path="", depth=1)
        return value


def _check(value: Any, *, path: str, depth: int) -> None:
    """Raises: ApiError: 400."""
    if depth > MAX_DEPTH:
        raise ApiError(400, f"The request body is nested more than {MAX_DEPTH} levels deep.", "invalid_json")
    match value:
        case str():
            _check_text(value, path)
        case list():
            for position, item in enumerate(value):
                if isinstance(item, str | list | dict):
                    _check(item, path=f"{path}.{position}", depth=depth + 1)
        case dict():
            for key, item in value.items():
                _check_text(key, path)
                _check(item, path=f"{path}.{key[:40]}", depth=depth + 1)


def _check_text(text: str, path: str) -> None:
    if not strict_json.is_text(text):
        param = path.removeprefix(".") or None
        message = f"{param or 'the body'} contains a zero byte or a lone surrogate"
        raise ApiError(400, message, "invalid_value", param)
