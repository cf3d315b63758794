"""Turns the JSON of a response into an object of the client."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from slipstream.errors import APIResponseError

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of the API's objects. `extra` has the members of the response that the object does not declare."""

    extra: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def parsed(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Builds an object of the class `kind` from a response. Raises: APIResponseError: a required field is missing."""
    if kind is dict:
        return values  # type: ignore[return-value]  # the caller wants the plain JSON
    from_json = getattr(kind, "from_json", None)
    parsed_record: _Record = record(kind, values) if from_json is None else from_json(values)
    return parsed_record


def record(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Builds an object of the class `kind`. Members that it does not declare go to `extra`. Raises: as `parsed`."""
    declared = fields(kind)  # type: ignore[arg-type]  # every record here is a dataclass
    required = [one.name for one in declared if one.default is MISSING and one.default_factory is MISSING]
    if missing := [name for name in required if name not in values]:
        got = ", ".join(sorted(values)) or "nothing"
        raise APIResponseError(f"{kind.__name__} needs {', '.join(missing)}, got {got}")
    names = {one.name for one in declared} - {"extra"}
    known = {name: value for name, value in values.items() if name in names}
    extra = {name: value for name, value in values.items() if name not in names}
    return kind(**known, extra=extra)  # type: ignore[call-arg]  # every record here is a `Record`
