"""The training method of an adapter and Medusa heads, which are trained together with one loss:

    loss = mean over j of -log p(c[j]) + heads_weight * loss of the heads on the adapted model's hidden states

c[j] is token j of an answer, and p is the distribution of the adapted model. Acceptance is simulated on new answers,
because the answers of the adapted model differ from the stored answers. The engine generates the new answers before
each validation, with the adapter and without drafts, which would not change the answers.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.drafters.medusa import MedusaDrafter
from engine.drafters.medusa_heads import MedusaHeads, token_features
from workers.hyperparameters.medusa import MedusaHyperparameters
from workers.hyperparameters.turbo_lora import TurboLoraHyperparameters
from workers.training.acceptance import Acceptance
from workers.training.eagle3.loss import step_loss
from workers.training.figures import Sums, batches_of, validation_of
from workers.training.hidden_states import HiddenRows, TapRows
from workers.training.loop import BatchLoss, Validation
from workers.training.medusa.acceptance import simulate_heads
from workers.training.medusa.data import medusa_rows, shifted_index
from workers.training.medusa.loss import medusa_loss
from workers.training.medusa.model import initial_heads
from workers.training.preparation import Preparation, as_stored, in_bfloat16
from workers.training.turbo_lora.answers import generate_answers
from workers.training.turbo_lora.data import make_batch
from workers.training.turbo_lora.model import AdaptedLayers


class TurboLoraMethod:
    def __init__(
        self,
        preparation: Preparation,
        parameters: TurboLoraHyperparameters,
        adapted: AdaptedLayers,
        heads: MedusaHeads,
        *,
        train: TapRows,
        validation: TapRows,
    ) -> None:
        """train, validation: rows with one tap, the input of the first adapted layer."""
        self._target, self._parameters = preparation.target, parameters
        self._train, self._validation = train, validation
        self._prompts = preparation.corpus.validation
        device = self._target.device
        self.adapted, self.heads = adapted.to(device), heads.to(device)
        self.module: nn.Module = nn.ModuleDict({"adapted": self.adapted, "heads": self.heads})
        self._bfloat16 = in_bfloat16(parameters.loop.precision, device)
        self._lm_head = self._target.lm_head.to(torch.bfloat16 if self._bfloat16 else torch.float32)  # [V, H]
        self._draft_head = self._lm_head[heads.draft_vocab].float()  # [Vd, H]

    @classmethod
    def prepare(cls, preparation: Preparation, parameters: TurboLoraHyperparameters) -> "TurboLoraMethod":
        """Runs the target over all conversations. Raises: SpeculatorNotLoadable."""
        heads = initial_heads(
            preparation,
            MedusaHyperparameters(
                num_heads=parameters.num_heads,
                num_layers=parameters.num_layers,
                token_input=parameters.token_input,
                draft_vocab_size=parameters.draft_vocab_size,
                loop=parameters.loop,
            ),
        )
        adapted = AdaptedLayers(preparation, parameters)
        train, validation = preparation.tap_rows((adapted.first,), memory_bytes=parameters.loop.cache_memory_bytes)
        return cls(preparation, parameters, adapted, heads, train=train, validation=validation)

    @property
    def draft_vocab_size(self) -> int:
        return self.heads.config.draft_vocab_size

    @property
    def cached_bytes(self) -> int:
        return self._train.num_bytes + self._validation.num_bytes

    @property
    def num_rows(self) -> int:
        return len(self._train.prompt_lengths)

    def save(self, folder: Path, *, base_model: str) -> None:
        self.heads.save(folder, base_model=base_model)
        self.adapted.save(folder, base_model=base_model)

    def loss(self, rows: Tensor, step: int) -> BatchLoss:
        loss, sums = self._loss(self._train, rows.tolist())
        return BatchLoss(loss, nats=sum(s.nats for s in sums), num_tokens=sum(s.count for s in sums))

    @torch.no_grad()
    def validate(self) -> Validation:
        count, size = len(self._prompts), self._parameters.loop.batch_rows
        return validation_of(
            self.simulate(), [self._loss(self._validation, rows)[1] for rows in batches_of(count, size)]
        )

    @torch.no_grad()
    def simulate(self) -> Acceptance:
        """Answers the validation prompts with the adapted model, and simulates serving these answers with the heads."""
        with tempfile.TemporaryDirectory() as folder:
            self.adapted.save(Path(folder), base_model="")
            answers = generate_answers(self._target, Path(folder), self._prompts)
        drafter = MedusaDrafter(as_stored(self.heads), self._target)
        return simulate_heads(drafter, answers, budget=self._parameters.loop.draft_budget)

    def _loss(self, source: TapRows, conversations: list[int]) -> tuple[Tensor, list[Sums]]:
        """Returns the loss and the sums of each head. In validation, the loss does not include the adapter's part."""
        parameters = self._parameters
        batch = make_batch(source, conversations)
        with torch.autocast(self._target.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            hidden = self.adapted(batch.layer_inputs).flatten(0, 1)[batch.flat_index].float()  # [A, H]
            heads_loss, sums = self._heads_loss(HiddenRows(hidden, batch.completions, batch.starts))
            loss = parameters.heads_weight * heads_loss
            if torch.is_grad_enabled():  # validation does not need this product with the whole lm_head
                all_rows = torch.arange(len(hidden), device=hidden.device)
                loss = loss + step_loss(hidden, self._lm_head, batch.completions, None, all_rows, 0.0)[0]
        return loss, sums

    def _heads_loss(self, rows: HiddenRows) -> tuple[Tensor, list[Sums]]:
        parameters, config = self._parameters, self.heads.config
        labelled = medusa_rows(
            rows,
            num_heads=config.num_heads,
            draft_vocab=self.heads.draft_vocab,
            vocab_size=self._target.config.vocab_size,
        )
        index = labelled.index
        tokens = None
        if config.token_input:
            tokens = token_features(self._target.weights.embedding[rows.completions[index]])
        target, shifted = None, shifted_index(index, num_heads=config.num_heads, num_rows=rows.hidden.shape[0])
        if parameters.soft_target_weight > 0.0 and torch.is_grad_enabled():
            target = functional.linear(rows.hidden.detach(), self._draft_head).float().softmax(-1)
        return medusa_loss(
            self.heads.features(rows.hidden[index], tokens).float(),
            self.heads.output_heads(self._draft_head),
            labelled.labels,
            target,
            shifted,
            soft_target_weight=0.0 if target is None else parameters.soft_target_weight,
            depth_decay=parameters.depth_decay,
        )
