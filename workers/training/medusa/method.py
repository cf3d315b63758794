"""The training method of Medusa heads. Validation simulates decoding with the drafter that is served."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.drafters.medusa import MedusaDrafter
from engine.drafters.medusa_heads import MedusaHeads, token_features
from engine.models.base import Model
from workers.hyperparameters.medusa import MedusaHyperparameters
from workers.training.acceptance import Acceptance
from workers.training.data import IGNORED, Conversation
from workers.training.figures import Sums, validation_of
from workers.training.hidden_states import HiddenRows, compute_hidden_rows, rows_bytes
from workers.training.loop import BatchLoss, Validation
from workers.training.medusa.acceptance import simulate_heads
from workers.training.medusa.data import MedusaRows, medusa_rows, shifted_index
from workers.training.medusa.loss import medusa_loss
from workers.training.medusa.model import initial_heads
from workers.training.preparation import Preparation, as_stored, in_bfloat16

_VALIDATION_ROWS = 1024  # rows per validation batch; limits the memory for logits


class MedusaMethod:
    def __init__(
        self,
        decoder: Model,
        parameters: MedusaHyperparameters,
        heads: MedusaHeads,
        *,
        train: HiddenRows,
        validation: HiddenRows,
    ) -> None:
        self._decoder = decoder
        self._parameters = parameters
        self.heads = heads.to(decoder.device)
        self._lm_head = decoder.lm_head[heads.draft_vocab].float()  # [Vd, H]
        self._train, self._validation = train, validation
        self._rows = self._labelled(train)
        self._validation_rows = self._labelled(validation)
        self._bfloat16 = in_bfloat16(parameters.loop.precision, decoder.device)

    @classmethod
    def prepare(cls, preparation: Preparation, parameters: MedusaHyperparameters) -> "MedusaMethod":
        """Runs the target over all conversations.

        Raises: SpeculatorNotLoadable: the speculator in `preparation.initial` does not fit the target.
        """
        target, corpus = preparation.target, preparation.corpus
        heads = initial_heads(preparation, parameters)
        size = target.config.hidden_size
        needed = rows_bytes(preparation.conversations, hidden_size=size, dtype=target.dtype)
        memory = parameters.loop.cache_memory_bytes

        def rows(conversations: tuple[Conversation, ...], name: str, before: int) -> HiddenRows:
            file = preparation.cache_file(name, needed_bytes=needed, memory_bytes=memory)
            report = preparation.reporter(before=before)
            return compute_hidden_rows(
                target,
                conversations,
                file=file,
                on_done=report,
                kept=preparation.kept,
                processes=preparation.processes,
            )

        return cls(
            target,
            parameters,
            heads,
            train=rows(corpus.train, "train", 0),
            validation=rows(corpus.validation, "validation", len(corpus.train)),
        )

    @property
    def draft_vocab_size(self) -> int:
        return self.heads.config.draft_vocab_size

    @property
    def cached_bytes(self) -> int:
        return self._train.num_bytes + self._validation.num_bytes

    def save(self, folder: Path, *, base_model: str) -> None:
        self.heads.save(folder, base_model=base_model)

    @property
    def module(self) -> nn.Module:
        return self.heads

    @property
    def num_rows(self) -> int:
        return self._rows.index.shape[0]

    def loss(self, rows: Tensor, step: int) -> BatchLoss:
        loss, sums = self._loss(self._train, self._rows, rows.to(self._decoder.device))
        return BatchLoss(loss, nats=sum(s.nats for s in sums), num_tokens=sum(s.count for s in sums))

    @torch.no_grad()
    def validate(self) -> Validation:
        return validation_of(self.simulate(self._validation), self._validation_sums())

    def simulate(self, rows: HiddenRows) -> Acceptance:
        """Simulates serving the conversations of `rows` at temperature 0, with at most `draft_budget` nodes per
        pass."""
        drafter = MedusaDrafter(as_stored(self.heads), self._decoder)
        return simulate_heads(drafter, rows, budget=self._parameters.loop.draft_budget)

    def _labelled(self, rows: HiddenRows) -> MedusaRows:
        return medusa_rows(
            rows,
            num_heads=self.heads.config.num_heads,
            draft_vocab=self.heads.draft_vocab,
            vocab_size=self._decoder.config.vocab_size,
        )

    def _loss(self, source: HiddenRows, labelled: MedusaRows, rows: Tensor) -> tuple[Tensor, list[Sums]]:
        """Returns the loss and the sums of every depth."""
        index = labelled.index[rows]
        hidden = source.hidden[index].float()  # [B, H]
        with torch.autocast(self._decoder.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            if self.heads.training and self._parameters.dropout > 0.0:
                hidden = functional.dropout(hidden, self._parameters.dropout)
            target, target_rows = self._target(source, index)
            return medusa_loss(
                self.heads.features(hidden, self._token_features(source, index)).float(),  # [B, K, H]
                self.heads.output_heads(self._lm_head),
                labelled.labels[rows],
                target,
                target_rows,
                soft_target_weight=0.0 if target is None else self._parameters.soft_target_weight,
                depth_decay=self._parameters.depth_decay,
            )

    def _token_features(self, source: HiddenRows, index: Tensor) -> Tensor | None:
        """Returns [B, H], features of the token that was sampled from the hidden state of each row."""
        if not self.heads.config.token_input:
            return None
        return token_features(self._decoder.weights.embedding[source.completions[index]])

    @torch.no_grad()
    def _target(self, source: HiddenRows, index: Tensor) -> tuple[Tensor | None, Tensor]:
        """Returns the target's probabilities [R, Vd], and for each label its row in the probabilities, [B, K].

        There is one row per distinct hidden state. If no soft targets are needed, the probabilities are None.
        """
        shifted = shifted_index(index, num_heads=self.heads.config.num_heads, num_rows=source.hidden.shape[0])
        if self._parameters.soft_target_weight == 0.0 or not self.heads.training:
            return None, shifted
        used_rows, target_rows = shifted.unique(return_inverse=True)
        return functional.linear(source.hidden[used_rows].float(), self._lm_head).float().softmax(-1), target_rows

    def _validation_sums(self) -> list[list[Sums]]:
        labels = self._validation_rows.labels
        assert (labels != IGNORED).any(dim=1).all()
        parts = []
        for start in range(0, labels.shape[0], _VALIDATION_ROWS):
            rows = torch.arange(start, min(labels.shape[0], start + _VALIDATION_ROWS), device=labels.device)
            parts.append(self._loss(self._validation, self._validation_rows, rows)[1])
        return parts
