"""Loads the models and adapters that a job names. Loading errors become user errors, which are never retried."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import AdapterNotLoadable, ModelNotLoadable, SpeculatorNotLoadable
from engine.loop import Engine
from engine.lora.adapters import Adapters, LoraAdapter
from engine.models.base import Model
from workers.failures import UserConfigError


@contextmanager
def loading_failures() -> Iterator[None]:
    """Raises: UserConfigError: with the code `speculator_not_loadable`, or the code of the ModelNotLoadable error."""
    try:
        yield
    except SpeculatorNotLoadable as error:
        raise UserConfigError("speculator_not_loadable", str(error)) from error
    except ModelNotLoadable as error:
        raise UserConfigError(error.code, str(error)) from error
    except (FileNotFoundError, ValueError, KeyError) as error:  # raised by libraries for tokenizer and config files
        raise UserConfigError("model_not_loadable", f"{type(error).__name__}: {error}") from error


def read_adapter(model: Model, folder: str) -> LoraAdapter:
    """Raises: UserConfigError: the folder has no adapter of this model that the engine can serve."""
    try:
        return Adapters(model).read("adapter", Path(folder))
    except AdapterNotLoadable as error:
        raise UserConfigError("adapter_not_loadable", str(error)) from error


def use_adapter(engine: Engine, folder: str | None) -> None:
    """Makes the adapter the default of requests that name no other adapter. Does nothing if `folder` is None.

    Raises: UserConfigError: as `read_adapter`, or the engine's speculator has an adapter of its own.
    """
    if folder is None:
        return
    if engine.adapters.default is not None:
        raise UserConfigError("adapter_not_usable", "a turbo_lora has an adapter of its own, so no other can be used")
    engine.adapters.default = read_adapter(engine.model, folder)
