"""The kinds of speculators that can be trained, and their hyperparameters from a customer's values."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from workers.exports.errors import ExchangeError
from workers.exports.formats import check_possible
from workers.hyperparameters.block import BlockHyperparameters
from workers.hyperparameters.draft_model import DraftModelHyperparameters
from workers.hyperparameters.eagle3 import Eagle3Hyperparameters
from workers.hyperparameters.fields import HyperparameterError, check_types
from workers.hyperparameters.loop import LoopParameters
from workers.hyperparameters.medusa import MedusaHyperparameters
from workers.hyperparameters.mtp import MtpHyperparameters
from workers.hyperparameters.turbo_lora import TurboLoraHyperparameters

Hyperparameters = (
    MedusaHyperparameters
    | TurboLoraHyperparameters
    | Eagle3Hyperparameters
    | MtpHyperparameters
    | BlockHyperparameters
    | DraftModelHyperparameters
)

_RECORDS: Mapping[str, type[Hyperparameters]] = {
    "medusa": MedusaHyperparameters,
    "turbo_lora": TurboLoraHyperparameters,
    "eagle3": Eagle3Hyperparameters,
    "mtp": MtpHyperparameters,
    "block": BlockHyperparameters,
    "draft_model": DraftModelHyperparameters,
}
KINDS = tuple(_RECORDS)


def read_hyperparameters(kind: str, values: Mapping[str, Any]) -> Hyperparameters:
    """`values`: by name, the loop's among the kind's own; what is missing takes its default.

    Raises: HyperparameterError: an unknown kind or name, a value of another type or out of range, or what would be
        trained cannot be exported as it has to be.
    """
    if kind not in _RECORDS:
        raise HyperparameterError("kind", f"kind must be one of {', '.join(KINDS)}, got {kind!r:.80}")
    record = _RECORDS[kind]
    of_loop = {f.name for f in fields(LoopParameters)}
    known = of_loop | {f.name for f in fields(record)} - {"loop"}
    if unknown := sorted(values.keys() - known):
        message = f"{kind} knows {', '.join(sorted(known))}; got also {', '.join(unknown):.80}"
        raise HyperparameterError(unknown[0], message, known=False)
    check_types(values, record, LoopParameters)
    defaults = record()
    loop = replace(defaults.loop, **{name: value for name, value in values.items() if name in of_loop})
    found = replace(defaults, loop=loop, **{name: value for name, value in values.items() if name not in of_loop})
    if loop.export_as is not None:
        _check_export(kind, loop.export_as, found)
    return found


def _check_export(kind: str, form: str, parameters: Hyperparameters) -> None:
    try:
        check_possible(kind, form, as_values(parameters))
    except ExchangeError as error:
        raise HyperparameterError("export_as", f"export_as {form:.40}: {error.message}") from error


def as_values(parameters: Hyperparameters) -> dict[str, Any]:
    """What `read_hyperparameters` takes."""
    values = asdict(parameters)
    loop: dict[str, Any] = values.pop("loop")
    return values | loop
