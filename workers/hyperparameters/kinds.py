"""Reads the hyperparameters of a kind from a customer's values."""

from collections.abc import Mapping
from dataclasses import Field, asdict, fields, replace
from importlib import import_module
from typing import Any, ClassVar, Protocol

from workers.exports.errors import ExchangeError
from workers.exports.formats import check_possible
from workers.hyperparameters.fields import HyperparameterError, check_types
from workers.hyperparameters.loop import LoopParameters
from workers.kinds import TRAINED_KINDS, class_prefix


class Hyperparameters(Protocol):
    """A frozen dataclass, all of whose fields have defaults."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def loop(self) -> LoopParameters: ...


def read_hyperparameters(kind: str, values: Mapping[str, Any]) -> Hyperparameters:
    """Reads the hyperparameters of the kind and of the loop by name; missing ones take their defaults.

    Raises: HyperparameterError: an unknown kind or name, a value of another type or out of range, or `export_as` names
        a format that cannot hold the speculator.
    """
    if kind not in TRAINED_KINDS:
        raise HyperparameterError("kind", f"kind must be one of {', '.join(TRAINED_KINDS)}, got {kind!r:.80}")
    record = hyperparameters_class(kind)
    of_loop = {f.name for f in fields(LoopParameters)}
    known = of_loop | {f.name for f in fields(record)} - {"loop"}
    if unknown := sorted(values.keys() - known):
        message = f"{kind} knows {', '.join(sorted(known))}; got also {', '.join(unknown):.80}"
        raise HyperparameterError(unknown[0], message, known=False)
    check_types(values, record, LoopParameters)
    defaults = record()
    loop = replace(defaults.loop, **{name: value for name, value in values.items() if name in of_loop})
    own = {name: value for name, value in values.items() if name not in of_loop}
    found: Hyperparameters = replace(defaults, loop=loop, **own)
    if loop.export_as is not None:
        _check_export(kind, loop.export_as, found)
    return found


def hyperparameters_class(kind: str) -> type[Any]:  # found by its name, so no type checker knows it
    found: type[Any] = getattr(import_module(f"workers.hyperparameters.{kind}"), f"{class_prefix(kind)}Hyperparameters")
    return found


def _check_export(kind: str, form: str, parameters: Hyperparameters) -> None:
    try:
        check_possible(kind, form, as_values(parameters))
    except ExchangeError as error:
        raise HyperparameterError("export_as", f"export_as {form:.40}: {error.message}") from error


def as_values(parameters: Hyperparameters) -> dict[str, Any]:
    """Returns values that `read_hyperparameters` reads."""
    values = asdict(parameters)
    loop: dict[str, Any] = values.pop("loop")
    return values | loop
