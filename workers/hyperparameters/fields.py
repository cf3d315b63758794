"""Checks the types and ranges of hyperparameters."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any


class HyperparameterError(ValueError):
    """A hyperparameter is unknown, or its value has a wrong type or range. The message states what is allowed.

    name: the name of the rejected hyperparameter, or "kind" if the kind is unknown.
    known: whether a hyperparameter of that name exists.
    """

    def __init__(self, name: str, message: str, *, known: bool = True) -> None:
        super().__init__(message)
        self.name = name
        self.known = known


def require_range(record: object, low: float, high: float, *names: str) -> None:
    """Raises: HyperparameterError: one of the fields `names` is not in low..high. The value None is always allowed."""
    for name in names:
        value = getattr(record, name)
        if value is not None and not low <= value <= high:
            raise HyperparameterError(name, f"{name} must be in {low}..{high}, got {value}")


def require_one_of(record: object, allowed: Sequence[str], name: str) -> None:
    """Raises: HyperparameterError."""
    if (value := getattr(record, name)) not in allowed:
        raise HyperparameterError(name, f"{name} must be one of {', '.join(allowed)}, got {value!r:.80}")


def check_types(values: Mapping[str, Any], *records: type) -> None:
    """Checks that each value has the type of the field with the same name.

    records: dataclasses, which together have a field for each of the `values`.
    Raises: HyperparameterError.
    """
    types = {f.name: f.type for record in records for f in fields(record)}
    for name, value in values.items():
        if not _fits(value, types[name]):
            wanted = getattr(types[name], "__name__", str(types[name]))
            raise HyperparameterError(name, f"{name} must be {wanted}, got {value!r:.80}")


def _fits(value: Any, annotation: Any) -> bool:
    """Tells whether a value has the given type. Integers are accepted as floats, because JSON may write 1.0 as 1."""
    allowed = {
        int: (int,),
        float: (int, float),
        bool: (bool,),
        str: (str,),
        str | None: (str, type(None)),
        int | None: (int, type(None)),
        float | None: (int, float, type(None)),
    }[annotation]
    return isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))
