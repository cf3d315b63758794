"""Tests of the training data of block drafters, and of their loss."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from engine.load import load_model
from workers.training.block.data import blocks_of, num_anchors
from workers.training.block.loss import block_loss, loss_over_depths
from workers.training.data import IGNORED, Conversation
from workers.training.hidden_states import compute_tap_rows


def test_labels_of_a_block_are_the_tokens_after_the_anchor(tiny_model: Path) -> None:
    target = load_model(tiny_model, dtype="float32")
    prompt, answer = (5, 6, 4), (7, 8, 9, 10)
    twice = [Conversation(custom_id="c", prompt_token_ids=prompt, completion_token_ids=answer, cut_by_length=True)] * 2
    rows = compute_tap_rows(target, twice, tap_layers=(1,), file=None)
    draft_index = torch.arange(260)  # 259 token ids, and a last entry for labels past the answer's end
    draft_index[[9, 259]] = IGNORED  # token 9 is not in the draft vocabulary

    # two blocks of the second conversation, at the answer's tokens 7 and 9
    blocks = blocks_of(rows, 1, torch.tensor([0, 2]), depths=2, draft_index=draft_index)

    assert num_anchors(rows, 1) == 3
    assert blocks.anchors.tolist() == [3, 5]
    assert blocks.tokens.tolist() == [[7, 8, 9], [9, 10, 0]]
    assert blocks.labels.tolist() == [[8, IGNORED], [10, IGNORED]]
    expected = target.hidden_states(torch.tensor((5, 6, 4, 7, 8, 9)), (1,))
    assert expected.taps is not None
    assert torch.equal(blocks.taps, expected.taps)
    assert torch.equal(blocks.hidden[0], expected.final[3:5])  # the target samples 8 and 9 from these hidden states
    assert torch.equal(blocks.hidden[1, 0], expected.final[5])  # and 10 from this one


def test_the_block_loss_follows_the_formula_of_its_module() -> None:
    torch.manual_seed(0)
    # 3 anchors, 2 depths and a vocabulary of 5 tokens
    logits, target_logits, confidence_logits = torch.randn(3, 2, 5), torch.randn(3, 2, 5), torch.randn(3, 2)
    labels = torch.tensor([[1, 2], [IGNORED, 4], [0, IGNORED]])

    token, confidence, sums = block_loss(logits, labels, target_logits, confidence_logits, soft_target_weight=0.3)
    found = loss_over_depths(token, confidence, sums.count, decay=4.0, confidence_weight=0.5)

    expected = 0.0
    for depth in range(2):
        has_label = labels[:, depth] != IGNORED
        drafted, q = logits[has_label, depth], target_logits[has_label, depth].softmax(-1)
        hard, soft = functional.cross_entropy(drafted, labels[has_label, depth]), functional.cross_entropy(drafted, q)
        acceptance_rate = torch.minimum(drafted.softmax(-1), q).sum(-1)  # when tokens are sampled
        bce = functional.binary_cross_entropy(confidence_logits[has_label, depth].sigmoid(), acceptance_rate)
        expected += math.exp(-depth / 4.0) * float(0.7 * hard + 0.3 * soft + 0.5 * bce)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert sums.count.tolist() == [2, 2]
