"""Turns errors in loading a model into user errors, which are never retried."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import ModelNotLoadable, SpeculatorNotLoadable
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
