"""Every kind's method, made from its hyperparameters."""

from pathlib import Path
from typing import Protocol

from workers.hyperparameters.block import BlockHyperparameters
from workers.hyperparameters.draft_model import DraftModelHyperparameters
from workers.hyperparameters.eagle3 import Eagle3Hyperparameters
from workers.hyperparameters.kinds import Hyperparameters
from workers.hyperparameters.medusa import MedusaHyperparameters
from workers.hyperparameters.mtp import MtpHyperparameters
from workers.hyperparameters.turbo_lora import TurboLoraHyperparameters
from workers.training.block.method import BlockMethod
from workers.training.draft_model.method import DraftModelMethod
from workers.training.eagle3.method import Eagle3Method
from workers.training.loop import Method
from workers.training.medusa.method import MedusaMethod
from workers.training.mtp.method import MtpMethod
from workers.training.preparation import Preparation
from workers.training.turbo_lora.method import TurboLoraMethod


class SpeculatorMethod(Method, Protocol):
    """A method whose result can be kept and served."""

    @property
    def draft_vocab_size(self) -> int:
        """How many tokens it can propose."""
        ...

    @property
    def cached_bytes(self) -> int:
        """Of the target's hidden states, computed once."""
        ...

    def save(self, folder: Path, *, base_model: str) -> None:
        """Writes the files that the engine's drafter loads into an existing folder."""
        ...


def make_method(parameters: Hyperparameters, preparation: Preparation) -> SpeculatorMethod:
    """Runs the target over all conversations where the kind learns from what it computes.

    Raises: SpeculatorNotLoadable: `preparation.initial` holds no speculator of this kind for this model.
    """
    match parameters:
        case MedusaHyperparameters():
            return MedusaMethod.prepare(preparation, parameters)
        case TurboLoraHyperparameters():
            return TurboLoraMethod.prepare(preparation, parameters)
        case Eagle3Hyperparameters():
            return Eagle3Method.prepare(preparation, parameters)
        case MtpHyperparameters():
            return MtpMethod.prepare(preparation, parameters)
        case BlockHyperparameters():
            return BlockMethod.prepare(preparation, parameters)
        case DraftModelHyperparameters():
            return DraftModelMethod.prepare(preparation, parameters)
