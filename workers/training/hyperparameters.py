"""A method's hyperparameters: a frozen dataclass read from the customer's values, names, types and ranges checked."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from workers.failures import UserConfigError

T = TypeVar("T")


def read_hyperparameters(kind: type[T], values: dict[str, Any], *, method: str) -> T:
    """Raises: UserConfigError: an unknown name, a value of another type or out of range."""
    types = {f.name: f.type for f in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    if unknown := sorted(values.keys() - types.keys()):
        raise UserConfigError("invalid_hyperparameters", f"{method} knows {sorted(types)}, got also {unknown}")
    for name, value in values.items():
        if not _fits(value, types[name]):
            wanted = getattr(types[name], "__name__", str(types[name]))
            raise UserConfigError("invalid_hyperparameters", f"{name} must be {wanted}, got {value!r:.80}")
    try:
        return kind(**values)
    except ValueError as error:
        raise UserConfigError("invalid_hyperparameters", str(error)) from error


def require(record: object, names: Sequence[str], fits: Callable[[Any], bool], wanted: str) -> None:
    """Raises: ValueError: a field's value does not fit; None always does."""
    for name in names:
        value = getattr(record, name)
        if value is not None and not fits(value):
            raise ValueError(f"{name} must be {wanted}, got {value}")


def _fits(value: Any, annotation: Any) -> bool:
    """JSON writes 1.0 as 1, so an integer fits a float; true is no number."""
    allowed = {
        int: (int,),
        float: (int, float),
        bool: (bool,),
        str: (str,),
        int | None: (int, type(None)),
        float | None: (int, float, type(None)),
    }[annotation]
    return isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))
