"""Checks JSON values before a template, a grammar or an encoder walks through them recursively."""

import json
from typing import Any

from engine.fields import InvalidRequest, encodable

MAX_NESTING = 100  # Python allows about 1,000 stack frames; a JSON schema of 30 nested objects has 90 levels


def check_nesting(value: Any, *, param: str | None = None) -> None:
    """Raises: InvalidRequest: lists and objects are nested more than `MAX_NESTING` levels deep."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        level = [inner for item in level for inner in _containers(item)]
        if not level:
            return
    raise InvalidRequest(
        f"{param or 'the body'} is nested too deeply, the limit is {MAX_NESTING}", param=param, code="invalid_json"
    )


def check_plain(value: Any, *, param: str) -> None:
    """Raises: InvalidRequest: the value is nested too deeply, or has text that is not valid Unicode."""
    check_nesting(value, param=param)
    encodable(json.dumps(value, ensure_ascii=False), param=param)


def _containers(value: Any) -> list[Any]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [inner for inner in values if isinstance(inner, dict | list)]
