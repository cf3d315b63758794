"""Reads and checks the hyperparameters that a user gives for a kind of speculator."""

from collections.abc import Mapping
from dataclasses import Field, asdict, fields, replace
from importlib import import_module
from typing import Any, ClassVar, Protocol

from workers.exports.errors import ExchangeError
from workers.exports.formats import check_exportable
from workers.hyperparameters.fields import HyperparameterError, check_types
from workers.hyperparameters.loop import LoopParameters
from workers.kinds import AUTO, AUTO_CANDIDATES, REQUESTED_KINDS, class_prefix

_LOOP_NAMES = frozenset(f.name for f in fields(LoopParameters))


class Hyperparameters(Protocol):
    """The hyperparameters of a kind: a frozen dataclass in which every field has a default."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def loop(self) -> LoopParameters: ...


def read_hyperparameters(kind: str, values: Mapping[str, Any]) -> Hyperparameters:
    """Reads hyperparameters of the kind and of the training loop. Those that are not in `values` keep their defaults.

    Raises: HyperparameterError: the kind or a name is unknown, a value has a wrong type or range, or the format in
        `export_as` does not support the speculator.
    """
    if kind not in REQUESTED_KINDS:
        raise HyperparameterError("kind", f"kind must be one of {', '.join(REQUESTED_KINDS)}, got {kind!r:.80}")
    record = hyperparameters_class(kind)
    names = _LOOP_NAMES | {f.name for f in fields(record)} - {"loop"}
    if unknown := sorted(values.keys() - names):
        message = f"{kind} has {', '.join(sorted(names))}; got also {', '.join(unknown):.80}"
        raise HyperparameterError(unknown[0], message, known=False)
    check_types(values, record, LoopParameters)
    defaults = record()
    loop = replace(defaults.loop, **loop_values(values))
    kind_values = {name: value for name, value in values.items() if name not in _LOOP_NAMES}
    parameters: Hyperparameters = replace(defaults, loop=loop, **kind_values)
    if kind == AUTO:
        for candidate in AUTO_CANDIDATES:
            read_hyperparameters(candidate, loop_values(values))
    elif loop.export_as is not None:
        _check_export(kind, loop.export_as, parameters)
    return parameters


def loop_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that belong to the training loop, and not to the kind."""
    return {name: value for name, value in values.items() if name in _LOOP_NAMES}


def hyperparameters_class(kind: str) -> type[Any]:  # Any, because type checkers can't see a class imported by name
    module = import_module(f"workers.hyperparameters.{kind}")
    record: type[Any] = getattr(module, f"{class_prefix(kind)}Hyperparameters")
    return record


def _check_export(kind: str, form: str, parameters: Hyperparameters) -> None:
    try:
        check_exportable(kind, form, as_values(parameters))
    except ExchangeError as error:
        raise HyperparameterError("export_as", f"export_as {form:.40}: {error.message}") from error


def as_values(parameters: Hyperparameters) -> dict[str, Any]:
    """Returns all values by name. This is the inverse of `read_hyperparameters`."""
    values = asdict(parameters)
    loop: dict[str, Any] = values.pop("loop")
    return values | loop
