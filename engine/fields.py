"""Typed access to the fields of a client's JSON object, with errors that name the field, the rule and the value."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any


class InvalidRequest(ValueError):
    """The client must change the request. `param` and `code` are fields of OpenAI's errors; codes are permanent."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


class Fields:
    """One JSON object. A null field counts as absent. `path` names the object in errors; it is "" at the top level."""

    def __init__(self, values: Any, *, path: str = "") -> None:
        if not isinstance(values, Mapping):
            name = path or "the body"
            raise InvalidRequest(f"{name} must be a JSON object, got {kind_of(values)}", param=path or None)
        self._values = values
        self.path = path

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def string(self, name: str, default: str) -> str:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._invalid(name, f"must be a string, got {kind_of(value)}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._invalid(name, f"must be true or false, got {kind_of(value)}")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._invalid(name, f"must be a JSON object, got {kind_of(value)}")
        return value

    def integer(self, name: str, *, at_least: int, at_most: int | None = None) -> int | None:
        """Returns the field's value, or None if the field is absent."""
        value = self._values.get(name)
        if value is None:
            return None
        bounds = f"an integer of at least {at_least}" if at_most is None else f"an integer in {at_least}..{at_most}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._invalid(name, f"must be {bounds}, got {kind_of(value)}")
        if value < at_least or (at_most is not None and value > at_most):
            raise self._invalid(name, f"must be {bounds}, got {value}")
        return value

    def number(
        self, name: str, default: float, *, at_least: float = -math.inf, above: float = -math.inf, at_most: float
    ) -> float:
        value = self._values.get(name)
        if value is None:
            return default
        lower = f"[{at_least:g}" if at_least > above else f"({above:g}"
        bounds = f"a number in {lower}, {at_most:g}]"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._invalid(name, f"must be {bounds}, got {kind_of(value)}")
        if not (above < value and at_least <= value <= at_most):  # NaN fails this test as well
            raise self._invalid(name, f"must be {bounds}, got {value}")
        return float(value)

    def _invalid(self, name: str, problem: str) -> InvalidRequest:
        param = f"{self.path}.{name}" if self.path else name
        return InvalidRequest(f"{param} {problem}", param=param)


def kind_of(value: Any) -> str:
    """Describes a value in an error message: a short scalar by itself, and a nested value only by its JSON type."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    return "a list" if isinstance(value, list) else "an object"


def reject_unknown(fields: Fields, *, known: Collection[str]) -> None:
    """Raises: InvalidRequest: the object has an unknown field."""
    for name in fields:
        if name not in known:
            param = f"{fields.path}.{name[:80]}" if fields.path else name[:80]
            raise InvalidRequest(f"unknown parameter: {param}", param=param, code="unknown_parameter")


def reject_unsupported(fields: Fields, *, known: Collection[str]) -> None:
    """Like `reject_unknown`, but for an object whose null and empty members count as absent.

    Clients send such members back with the messages that they received, such as `"refusal": null`.
    """
    for name in fields:
        if name not in known and fields.get(name) not in (None, []):
            param = f"{fields.path}.{name[:80]}" if fields.path else name[:80]
            raise InvalidRequest(f"{param} is not supported", param=param, code="unsupported_parameter")


def encodable(text: str, *, param: str) -> str:
    """Returns the text if UTF-8 can encode it.

    JSON can contain half of a surrogate pair as an escape, which UTF-8 cannot encode. Raises: InvalidRequest.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{param} must be valid Unicode, got a lone surrogate at character {error.start}", param=param
        ) from error
    return text
