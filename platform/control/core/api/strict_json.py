"""Strict parsing of JSON, with the standard library only, so that small processes can import it.

Python's parser accepts NaN and Infinity, numbers too large for a float (1e999), and any nesting that its stack allows.
`loads` refuses them.
"""

import json
from typing import Any, NoReturn


class NotJson(ValueError):
    """The input is not strict JSON. The message gives the reason and is appended to the words "must be JSON"."""


def loads(raw: bytes) -> Any:
    """Raises: NotJson."""
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:  # ValueError: invalid JSON or UTF-8, or too many digits
        raise NotJson(_reason(error)) from error


def is_text(value: str) -> bool:
    """Returns whether the string can be encoded as UTF-8 and stored in PostgreSQL."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:40]} is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _reason(error: ValueError | RecursionError) -> str:
    match error:
        case RecursionError():
            return ", nested less deeply"
        case UnicodeDecodeError():
            return " in UTF-8"
        case _:
            return f": {str(error).partition(';')[0]}"  # the text after ";" is about Python's limit on digits
