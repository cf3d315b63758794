"""The training method of draft models. Validation simulates decoding with the drafter that is served."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.drafters.draft_model import DraftModelDrafter
from engine.load import load_model
from workers.hyperparameters.draft_model import DraftModelHyperparameters
from workers.training.acceptance import Acceptance
from workers.training.data import draft_indices
from workers.training.draft_model.data import make_batch
from workers.training.draft_model.model import DraftModel, head_for_training
from workers.training.eagle3.loss import step_loss
from workers.training.figures import Sums, batches_of, validation_of
from workers.training.hidden_states import TapRows
from workers.training.loop import BatchLoss, Validation
from workers.training.preparation import Preparation, in_bfloat16
from workers.training.simulation import simulate


class DraftModelMethod:
    def __init__(
        self,
        preparation: Preparation,
        parameters: DraftModelHyperparameters,
        model: DraftModel,
        *,
        train: TapRows,
        validation: TapRows,
    ) -> None:
        self._target, self._model_dir = preparation.target, preparation.model_dir
        self._parameters = parameters
        device, lm_head = self._target.device, self._target.lm_head
        self.model = model.to(device)
        self._head = head_for_training(lm_head, model.draft_vocab)  # [Vd + 1, H + 1]
        self._draft_index = draft_indices(model.draft_vocab.to(device), lm_head.shape[0])
        self._train, self._validation = train, validation
        self._bfloat16 = in_bfloat16(parameters.loop.precision, device)

    @classmethod
    def prepare(cls, preparation: Preparation, parameters: DraftModelHyperparameters) -> "DraftModelMethod":
        """Runs the target over all conversations. Raises: SpeculatorNotLoadable."""
        if preparation.initial is not None:
            model = DraftModel.load(preparation.initial)
        else:
            vocab = preparation.draft_vocab(parameters.draft_vocab_size, parameters.loop)
            model = DraftModel.from_target(preparation.model_dir, num_layers=parameters.num_layers, draft_vocab=vocab)
        train, validation = preparation.tap_rows((), memory_bytes=parameters.loop.cache_memory_bytes)
        return cls(preparation, parameters, model, train=train, validation=validation)

    @property
    def draft_vocab_size(self) -> int:
        return self.model.draft_vocab.shape[0]

    @property
    def cached_bytes(self) -> int:
        return self._train.num_bytes + self._validation.num_bytes

    @property
    def module(self) -> nn.Module:
        return self.model

    @property
    def num_rows(self) -> int:
        return len(self._train.prompt_lengths)

    def save(self, folder: Path, *, base_model: str) -> None:
        self.model.save(folder, model_dir=self._model_dir, lm_head=self._target.lm_head, base_model=base_model)

    def loss(self, rows: Tensor, step: int) -> BatchLoss:
        loss, sums = self._loss(self._train, rows.tolist())
        return BatchLoss(loss, nats=sums.nats, num_tokens=sums.count)

    @torch.no_grad()
    def validate(self) -> Validation:
        count, size = len(self._validation.prompt_lengths), self._parameters.loop.batch_rows
        return validation_of(
            self.simulate(), [[self._loss(self._validation, rows)[1]] for rows in batches_of(count, size)]
        )

    @torch.no_grad()
    def simulate(self) -> Acceptance:
        """Simulates serving the validation conversations at temperature 0, after saving and loading the draft model."""
        target = self._target
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder), base_model="")
            served = load_model(Path(folder), dtype=str(target.dtype).removeprefix("torch."), device=str(target.device))
        drafter = DraftModelDrafter(served, target)
        return simulate(drafter, self._validation, target, budget=self._parameters.loop.draft_budget)

    def _loss(self, source: TapRows, conversations: list[int]) -> tuple[Tensor, Sums]:
        batch = make_batch(source, conversations, draft_index=self._draft_index)
        target = self._target_probabilities(batch.hidden)
        with torch.autocast(self._target.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            hidden = self.model(batch.tokens).flatten(0, 1)[batch.flat_index]  # [A, H]
            return step_loss(
                functional.pad(hidden.float(), (0, 1), value=1.0),  # [A, H + 1], the input of `head_for_training`
                self._head,
                batch.labels,
                target,
                torch.arange(len(batch.flat_index), device=hidden.device),
                self._parameters.soft_target_weight,
            )

    @torch.no_grad()
    def _target_probabilities(self, hidden: Tensor) -> Tensor:
        """Returns [A, Vd + 1]: the target's softmax over the draft vocabulary, and 0 for all other tokens together."""
        logits = functional.linear(hidden, self._head[:-1, :-1])
        return functional.pad(logits.softmax(-1), (0, 1))
