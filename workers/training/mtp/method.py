"""The training method of multi-token-prediction modules. Validation simulates decoding with the served drafter."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.drafters.mtp_model import Mtp
from engine.models.base import Model
from workers.hyperparameters.mtp import MtpHyperparameters
from workers.training.acceptance import Acceptance
from workers.training.data import draft_indices
from workers.training.eagle3.steps import UnrolledLoss
from workers.training.figures import validation_of
from workers.training.hidden_states import TapRows
from workers.training.loop import BatchLoss, Validation
from workers.training.mtp.model import existing_module, new_module
from workers.training.mtp.unroll import MtpUnroll
from workers.training.preparation import Preparation, as_stored, in_bfloat16
from workers.training.simulation import simulate


class MtpMethod:
    def __init__(
        self, target: Model, parameters: MtpHyperparameters, module: Mtp, *, train: TapRows, validation: TapRows
    ) -> None:
        """train, validation: rows that were computed without tap layers, so their only tap is the final hidden
        state."""
        self._target, self._parameters = target, parameters
        device, size = target.device, target.config.vocab_size
        self.mtp = module.to(device)
        vocab = torch.arange(size) if module.draft_vocab is None else module.draft_vocab
        head = target.lm_head[vocab.to(device)].float()  # [Vd, H]
        cosines, sines = (table.to(device) for table in module.rotary_tables(target.max_positions))
        self._train, self._validation = train, validation
        self._loss = UnrolledLoss(
            unroll=MtpUnroll(module, target.weights.embedding, (cosines, sines)),
            lm_head=head,
            target_head=head,
            draft_index=draft_indices(vocab.to(device), size),
            parameters=parameters,
            bfloat16=in_bfloat16(parameters.loop.precision, device),
        )

    @classmethod
    def prepare(cls, preparation: Preparation, parameters: MtpHyperparameters) -> "MtpMethod":
        """Runs the target over all conversations.

        Raises: SpeculatorNotLoadable: the speculator in `preparation.initial` does not fit the target.
        """
        module = existing_module(preparation, parameters)
        train, validation = preparation.tap_rows((), memory_bytes=parameters.loop.cache_memory_bytes)
        if module is None:
            module = new_module(preparation, parameters, train.taps[:, 0])
        return cls(preparation.target, parameters, module, train=train, validation=validation)

    @property
    def draft_vocab_size(self) -> int:
        return self._loss.lm_head.shape[0]

    @property
    def cached_bytes(self) -> int:
        return self._train.num_bytes + self._validation.num_bytes

    @property
    def module(self) -> nn.Module:
        return self.mtp

    @property
    def num_rows(self) -> int:
        return len(self._train.prompt_lengths)

    def save(self, folder: Path, *, base_model: str) -> None:
        self.mtp.config = replace(self.mtp.config, verifier=self.mtp.config.verifier | {"name_or_path": base_model})
        self.mtp.save(folder)

    def loss(self, rows: Tensor, step: int) -> BatchLoss:
        return self._loss.batch_loss(self._train, rows.tolist(), step)

    def validate(self) -> Validation:
        return validation_of(self.simulate(), self._loss.sums(self._validation))

    @torch.no_grad()
    def simulate(self) -> Acceptance:
        """Simulates serving the validation conversations at temperature 0."""
        served = DensePrediction(as_stored(self.mtp), self._target)
        drafter = MtpDrafter(served, self._target, max_depth=self._parameters.steps)
        return simulate(drafter, self._validation, self._target, budget=self._parameters.loop.draft_budget)
