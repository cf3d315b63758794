"""The interface of a training method, and the function that makes the method for a kind of speculator."""

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from engine.kinds import KINDS
from workers.hyperparameters.kinds import Hyperparameters
from workers.training.loop import Method, Validation
from workers.training.preparation import Preparation


class SpeculatorMethod(Method[Validation], Protocol):
    """The training method of a kind. Its class has `prepare(preparation, parameters)`, which returns an instance."""

    @property
    def draft_vocab_size(self) -> int:
        """Returns the number of tokens that the speculator can propose."""
        ...

    @property
    def cached_bytes(self) -> int:
        """Returns the bytes of the target's hidden states that the method keeps in memory or in a file."""
        ...

    def save(self, folder: Path, *, base_model: str) -> None:
        """Writes config.json and the weights, which the engine's drafter loads, into an existing folder."""
        ...


def make_method(kind: str, parameters: Hyperparameters, preparation: Preparation) -> SpeculatorMethod:
    """Makes the method of a kind. This can take long, because it runs the target over all conversations.

    Args:
        parameters: the hyperparameters of this kind.

    Raises: SpeculatorNotLoadable: the folder `preparation.initial` has no speculator of this kind for this model.
    """
    method: SpeculatorMethod = trainer_class(kind).prepare(preparation, parameters)
    return method


def trainer_class(kind: str) -> Any:  # Any, because type checkers can't see a class imported by name
    reference = KINDS[kind].trainer
    assert reference is not None, f"{kind} is not trained"
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
