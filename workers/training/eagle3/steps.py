"""The loss of a drafter that runs on its own output, at every unroll step. EAGLE-3 and MTP modules share it.

loss = sum over steps s of step_decay ** s * mean over anchors of the step's cross entropy
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from workers.hyperparameters.eagle3 import Eagle3Hyperparameters
from workers.hyperparameters.mtp import MtpHyperparameters
from workers.training.eagle3.data import Eagle3Batch, make_batch
from workers.training.eagle3.loss import step_loss
from workers.training.figures import Sums, batches_of
from workers.training.hidden_states import TapRows
from workers.training.loop import BatchLoss


class Unrolled(Protocol):
    def outputs(self, batch: Eagle3Batch, steps: int) -> Iterator[Tensor]:
        """[A, H] of step after step: what lm_head reads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrolledLoss:
    """
    lm_head: [Vd, H]. The drafter's own; gets a gradient if it requires one.
    target_head: [Vd, Ht] float32. The target's, cut to the draft vocabulary.
    place: [V + 1] int64, as `make_batch` wants it.
    """

    unroll: Unrolled
    lm_head: Tensor
    target_head: Tensor
    place: Tensor
    parameters: Eagle3Hyperparameters | MtpHyperparameters
    bfloat16: bool

    def of(self, rows: TapRows, conversations: Sequence[int]) -> BatchLoss:
        losses, sums = self._steps(rows, conversations)
        decay = self.parameters.step_decay
        total = torch.stack([decay**step * loss for step, loss in enumerate(losses)]).sum()
        return BatchLoss(total, nats=sum(s.nats for s in sums), num_tokens=sum(s.count for s in sums))

    @torch.no_grad()
    def sums(self, rows: TapRows) -> list[list[Sums]]:
        """Yields the sums of every step, for each batch."""
        batches = batches_of(len(rows.prompt_lengths), self.parameters.loop.batch_rows)
        return [self._steps(rows, conversations)[1] for conversations in batches]

    def _steps(self, rows: TapRows, conversations: Sequence[int]) -> tuple[list[Tensor], list[Sums]]:
        steps = self.parameters.steps
        soft_weight = (
            self.parameters.soft_target_weight if torch.is_grad_enabled() else 0.0
        )  # validation figures need no soft targets
        batch = make_batch(rows, conversations, steps=steps, place=self.place)
        target = functional.linear(batch.hidden, self.target_head).softmax(-1) if soft_weight > 0.0 else None
        losses, sums = [], []
        with torch.autocast(self.place.device.type, dtype=torch.bfloat16, enabled=self.bfloat16):
            for step, features in enumerate(self.unroll.outputs(batch, steps)):
                labels, chosen = batch.labels[:, step], batch.chosen[:, step]
                loss, found = step_loss(features.float(), self.lm_head, labels, target, chosen, soft_weight)
                losses.append(loss)
                sums.append(found)
        return losses, sums
