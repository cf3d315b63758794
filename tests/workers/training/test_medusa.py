"""Tests of the labels and the loss of Medusa heads."""

import math

import pytest
import torch

from workers.training.data import IGNORED
from workers.training.hidden_states import HiddenRows
from workers.training.medusa.data import medusa_rows, shifted_index
from workers.training.medusa.loss import medusa_loss


def test_labels_are_draft_vocabulary_indices_and_never_tokens_of_the_next_answer() -> None:
    rows = HiddenRows(hidden=torch.zeros(7, 2), completions=torch.tensor([4, 9, 6, 4, 9, 9, 5]), starts=(0, 3, 7))
    found = medusa_rows(rows, num_heads=2, draft_vocab=torch.tensor([4, 6, 9]), vocab_size=10)
    # Rows 2, 5 and 6 have no label and are left out: 2 and 6 are the last rows of an answer, and the token after row 5,
    # which is token 5, is not in the draft vocabulary.
    assert found.index.tolist() == [0, 1, 3, 4]
    assert found.labels.tolist() == [[2, 1], [1, IGNORED], [2, 2], [2, IGNORED]]


def test_shifted_index_returns_the_rows_from_which_the_target_sampled_the_labels() -> None:
    assert shifted_index(torch.tensor([0, 5]), num_heads=3, num_rows=7).tolist() == [[1, 2, 3], [6, 6, 6]]


def test_the_loss_is_the_sum_of_cross_entropies_weighted_by_depth() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(5, 2, 3, generator=generator, dtype=torch.float64)
    heads = tuple(torch.randn(2, 6, 3, generator=generator, dtype=torch.float64))
    labels = torch.tensor([[0, 1], [2, 3], [4, IGNORED], [5, IGNORED], [1, 1]])
    total, sums = medusa_loss(features, heads, labels, None, labels, soft_target_weight=0.0, depth_decay=0.5)
    first = torch.nn.functional.cross_entropy(features[:, 0] @ heads[0].T, labels[:, 0])
    second = torch.nn.functional.cross_entropy(features[:, 1] @ heads[1].T, labels[:, 1], ignore_index=IGNORED)
    # medusa_loss computes in float32, even with inputs in float64.
    torch.testing.assert_close(total.double(), first + 0.5 * second, rtol=1e-5, atol=1e-6)
    assert [found.count for found in sums] == [5, 3]
    assert [found.nats for found in sums] == pytest.approx([float(first) * 5, float(second) * 3])


def test_the_soft_target_loss_is_lowest_for_the_distribution_of_the_target() -> None:
    target, labels = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0]])

    def loss(logits: torch.Tensor) -> float:
        heads = (torch.eye(3),)
        total, _ = medusa_loss(
            logits.view(1, 1, 3), heads, labels, target, labels, soft_target_weight=1.0, depth_decay=1.0
        )
        return float(total)

    entropy = -sum(p * math.log(p) for p in (0.7, 0.2, 0.1))
    assert loss(target.log()) == pytest.approx(entropy, abs=1e-6)
    assert loss(torch.tensor([5.0, 0.0, 0.0])) > entropy


def test_ignored_labels_give_no_gradient() -> None:
    features = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([[1, IGNORED], [2, IGNORED]])
    target = torch.full((2, 4), 0.25)
    heads = (torch.eye(4),) * 2
    total, _ = medusa_loss(features, heads, labels, target, labels.clamp(0, 1), soft_target_weight=0.5, depth_decay=0.8)
    (gradient,) = torch.autograd.grad(total, features)
    assert gradient[:, 1].abs().max() == 0.0
    assert gradient[:, 0].abs().max() > 0.0
