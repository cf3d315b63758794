"""The loss of EAGLE-3 and MTP drafters. They are unrolled in training: each step reads the output of the step before.

    loss = sum_s step_decay**s * loss_s        loss_s: the mean of step s over its anchors, see loss.py

Step s uses about the part anchor_share**s of the anchors, so that deep steps, which are reached rarely in serving, cost
little training time (conditional drop: P-EAGLE, arXiv:2602.01469).

Shape letters: A anchors, As the anchors of step s, H the drafter's and Ht the target's hidden size, V the target's and
Vd the draft vocabulary.
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

_GOLDEN_RATIO = (1 + 5**0.5) / 2


class Unrolled(Protocol):
    def outputs(self, batch: Eagle3Batch, step_anchors: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yields for each step the inputs of lm_head, [As, H]. step_anchors: the result of `step_anchors`."""
        ...


def step_anchors(positions: Tensor, steps: int, share: float, offset: int = 0) -> list[Tensor]:
    """Returns the indices of each step's anchors, [As] int64, ascending. Each step uses a subset of the step before it.

    An anchor at position p belongs to step s if the fractional part of (p + offset) times the golden ratio is below
    share**s. Such positions are spread evenly over a conversation.

    positions: [A] int64, of the anchors in their conversations.
    offset: selects other anchors; the number of the optimizer's step.
    """
    fractions = (positions.double() + offset).mul(_GOLDEN_RATIO).frac()
    return [(fractions < share**step).nonzero().flatten() for step in range(steps)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrolledLoss:
    """Computes the loss of a drafter that is unrolled.

    unroll: runs the drafter over a batch.
    lm_head: [Vd, H]. The drafter's lm_head; gets a gradient if it requires one.
    target_head: [Vd, Ht] float32. The target's lm_head rows of the draft vocabulary.
    draft_index: [V + 1] int64, from `workers.training.data.draft_indices`.
    anchor_share: see `step_anchors`.
    """

    unroll: Unrolled
    lm_head: Tensor
    target_head: Tensor
    draft_index: Tensor
    parameters: Eagle3Hyperparameters | MtpHyperparameters
    bfloat16: bool
    anchor_share: float = 1.0

    def batch_loss(self, rows: TapRows, conversations: Sequence[int], optimizer_step: int) -> BatchLoss:
        losses, sums = self._steps(rows, conversations, optimizer_step)
        decay = self.parameters.step_decay
        total = torch.stack([decay**step * loss for step, loss in enumerate(losses)]).sum()
        return BatchLoss(total, nats=sum(s.nats for s in sums), num_tokens=sum(s.count for s in sums))

    @torch.no_grad()
    def sums(self, rows: TapRows) -> list[list[Sums]]:
        """Returns a list for each batch, with the sums of each step."""
        batches = batches_of(len(rows.prompt_lengths), self.parameters.loop.batch_rows)
        return [self._steps(rows, conversations, 0)[1] for conversations in batches]

    def _steps(
        self, rows: TapRows, conversations: Sequence[int], optimizer_step: int
    ) -> tuple[list[Tensor], list[Sums]]:
        steps = self.parameters.steps
        # Validation reports only the cross entropy of the labels, of all anchors.
        is_training = torch.is_grad_enabled()
        soft_weight = self.parameters.soft_target_weight if is_training else 0.0
        batch = make_batch(rows, conversations, steps=steps, draft_index=self.draft_index)
        target = functional.linear(batch.hidden, self.target_head).softmax(-1) if soft_weight > 0.0 else None
        share = self.anchor_share if is_training else 1.0
        anchors = step_anchors(batch.positions[batch.anchors], steps, share, optimizer_step)
        anchors = [each for each in anchors if len(each)]  # the deep steps of a few short answers may have no anchor
        losses, sums = [], []
        with torch.autocast(self.draft_index.device.type, dtype=torch.bfloat16, enabled=self.bfloat16):
            for step, features in enumerate(self.unroll.outputs(batch, anchors)):
                labels, target_rows = batch.labels[anchors[step], step], batch.target_rows[anchors[step], step]
                loss, step_sums = step_loss(features.float(), self.lm_head, labels, target, target_rows, soft_weight)
                losses.append(loss)
                sums.append(step_sums)
        return losses, sums
