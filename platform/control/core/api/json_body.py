"""Strict parsing of JSON request bodies. Python's parser accepts the following input, but databases and clients do not:

refused with `invalid_json`     NaN and Infinity, numbers too large for a float (1e999), excessive nesting
refused with `invalid_value`    strings with lone surrogates or zero bytes, which PostgreSQL cannot store
"""

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.parsers import BaseParser

from control.core.api import strict_json
from control.core.api.errors import ApiError

MAX_DEPTH = 64


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
        value = parse_json(stream.read())
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
