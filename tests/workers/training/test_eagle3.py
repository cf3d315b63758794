"""Tests of the loss of EAGLE-3, and of the unroll, which runs the module several times on the module's output."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from engine.load import load_model
from engine.models.base import Model
from engine.models.rotary import tables_of
from tests.engine.eagle3_reference import make_config, make_module, reference_layer
from workers.hyperparameters.eagle3 import Eagle3Hyperparameters
from workers.training.data import IGNORED, Conversation, Corpus
from workers.training.eagle3.data import make_batch
from workers.training.eagle3.loss import step_loss
from workers.training.eagle3.method import final_gain, initial_module
from workers.training.eagle3.steps import UnrolledLoss, step_anchors
from workers.training.eagle3.unroll import Unroll
from workers.training.hidden_states import compute_tap_rows
from workers.training.preparation import Preparation

# Loss


def test_the_loss_in_chunks_equals_the_loss_of_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    # A chunk holds 4 of the 11 rows; each row has 5 logits, one for each token of the vocabulary.
    monkeypatch.setattr("workers.training.eagle3.loss._CHUNK", 4 * 5)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(11, 6, generator=generator, requires_grad=True)
    lm_head = torch.randn(5, 6, generator=generator, requires_grad=True)
    labels = torch.tensor([0, 1, 2, IGNORED, 4, 0, 1, IGNORED, 3, 4, 0])
    target = torch.randn(20, 5, generator=generator).softmax(-1)
    target_rows = torch.randperm(20, generator=generator)[:11]

    loss, sums = step_loss(features, lm_head, labels, target, target_rows, 0.3)
    found = torch.autograd.grad(loss, (features, lm_head))

    has_label = labels != IGNORED
    logits = (features @ lm_head.T)[has_label]
    hard = functional.cross_entropy(logits, labels[has_label])
    soft = functional.cross_entropy(logits, target[target_rows][has_label])
    expected = torch.autograd.grad(0.7 * hard + 0.3 * soft, (features, lm_head))
    torch.testing.assert_close(loss, 0.7 * hard + 0.3 * soft)
    assert sums.count == 9
    assert sums.nats == pytest.approx(hard.item() * 9, rel=1e-5)
    for gradient, expected_gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)  # the order of additions differs


# Unroll


def conversation(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Conversation:
    return Conversation(custom_id="c", prompt_token_ids=prompt, completion_token_ids=completion, cut_by_length=True)


@pytest.fixture(scope="module")
def target(tiny_model: Path) -> Model:
    return load_model(tiny_model, dtype="float32")


def test_the_unroll_equals_running_the_module_on_its_own_output(target: Model) -> None:
    """For every anchor, the module is also run twice without the unroll.

    Each row of the first run reads the target's hidden state at a position up to the anchor, and the next token. The
    second run has one more row, which reads the output of the first run.
    """
    config = make_config(tap_layers=(1, 1, 2), fc_norm=True, norm_output=True)
    module = make_module(config)
    conversations = [conversation((5, 6, 7, 8), (9, 10, 11, 12, 13)), conversation((20, 21), (22, 23, 24))]
    rows = compute_tap_rows(target, conversations, tap_layers=config.taps_of(2), file=None)
    draft_index = torch.full((config.vocab_size + 1,), IGNORED)
    draft_index[module.draft_vocab] = torch.arange(config.draft_vocab_size)
    batch = make_batch(rows, [0, 1], steps=2, draft_index=draft_index)
    tables = tables_of(config.layer_config(), config.head_dim, 64)
    with torch.no_grad():
        unroll = Unroll(module, target.weights.embedding, tables)
        first, second = unroll.outputs(batch, step_anchors(batch.positions[batch.anchors], 2, 1.0))
    anchor = 0
    for each in conversations:
        tokens = [*each.prompt_token_ids, *each.completion_token_ids]
        for position in range(len(each.prompt_token_ids) - 1, len(tokens) - 2):
            read_tokens = torch.tensor(tokens[: position + 3])
            taps = target.hidden_states(read_tokens[: position + 1], config.taps_of(2)).taps
            assert taps is not None
            embeddings = target.weights.embedding[read_tokens].float()
            with torch.no_grad():
                fused = module.fuse(taps.float())
                expected_first, fed_back = module.split(
                    reference_layer(module, fused, embeddings[1 : position + 2])  # each row with the next token
                )
                expected_second, _ = module.split(
                    reference_layer(module, torch.cat([fused, fed_back[-1:]]), embeddings[1 : position + 3])
                )
            torch.testing.assert_close(first[anchor], expected_first[-1], rtol=1e-4, atol=1e-4)
            if position + 2 < len(tokens):
                torch.testing.assert_close(second[anchor], expected_second[-1], rtol=1e-4, atol=1e-4)
            anchor += 1
    assert anchor == batch.labels.shape[0] == 6


def test_steps_that_use_fewer_anchors_have_the_same_outputs_at_these_anchors(target: Model) -> None:
    config = make_config(tap_layers=(1, 1, 2), fc_norm=True, norm_output=True)
    module = make_module(config)
    conversations = [conversation((5, 6, 7, 8), (9, 10, 11, 12, 13)), conversation((20, 21), (22, 23, 24))]
    rows = compute_tap_rows(target, conversations, tap_layers=config.taps_of(2), file=None)
    batch = make_batch(rows, [0, 1], steps=3, draft_index=torch.zeros(config.vocab_size + 1, dtype=torch.int64))
    unroll = Unroll(module, target.weights.embedding, tables_of(config.layer_config(), config.head_dim, 64))
    used = [torch.arange(6), torch.tensor([0, 2, 3, 5]), torch.tensor([2, 5])]

    with torch.no_grad():
        some = list(unroll.outputs(batch, used))
        everywhere = list(unroll.outputs(batch, [torch.arange(6)] * 3))

    for anchors, step, expected in zip(used, some, everywhere, strict=True):
        torch.testing.assert_close(step, expected[anchors], rtol=1e-5, atol=1e-5)


def test_short_answers_whose_deep_steps_have_no_anchor_have_a_loss(target: Model) -> None:
    config = make_config(tap_layers=(1, 1, 2), fc_norm=True, norm_output=True)
    module = make_module(config)
    rows = compute_tap_rows(target, [conversation((5, 6, 7, 8), (9, 10, 11))], tap_layers=config.taps_of(2), file=None)
    loss = UnrolledLoss(
        unroll=Unroll(module, target.weights.embedding, tables_of(config.layer_config(), config.head_dim, 64)),
        lm_head=module.lm_head.weight,
        target_head=target.lm_head[module.draft_vocab].float(),
        draft_index=torch.zeros(config.vocab_size + 1, dtype=torch.int64),
        parameters=Eagle3Hyperparameters(steps=3),
        bfloat16=False,
        anchor_share=0.1,
    )

    losses = [loss.batch_loss(rows, [0], step) for step in range(8)]

    assert {each.num_tokens for each in losses} == {2, 3}  # the second step has at most one anchor
    torch.stack([each.total for each in losses]).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@given(
    num_anchors=st.integers(0, 3000),
    first=st.integers(0, 100_000),
    steps=st.integers(1, 8),
    share=st.floats(0.1, 1.0),
    offset=st.integers(0, 1_000_000),
)
def test_each_step_uses_a_shrinking_part_of_the_anchors_of_the_step_before_it(
    num_anchors: int, first: int, steps: int, share: float, offset: int
) -> None:
    anchors = step_anchors(torch.arange(first, first + num_anchors), steps, share, offset)

    assert anchors[0].tolist() == list(range(num_anchors))
    for step, (before, after) in enumerate(pairwise(anchors), start=1):
        assert set(after.tolist()) <= set(before.tolist())
        assert after.tolist() == sorted(after.tolist())
        # The fractional parts are spread so evenly that the count differs from the exact part by a few anchors only.
        assert abs(len(after) - num_anchors * share**step) <= 10


def test_a_new_drafter_has_the_targets_logits(target: Model, tmp_path: Path) -> None:
    vocab = torch.arange(3, 203)
    config = make_config(tap_layers=(0, 1, 2), fc_norm=True, norm_output=True, draft_vocab_size=200)
    tokens = torch.tensor([5, 6, 7, 8, 9])
    prompt = conversation((5, 6, 7, 8, 9), (10, 11))
    preparation = Preparation(
        model_dir=tmp_path,
        target=target,
        corpus=Corpus(train=(prompt,), validation=(prompt,), sha256="", num_skipped=0),
        cache=tmp_path,
        seed=0,
        emit=lambda event: None,
    )

    module = initial_module(config, vocab, target.lm_head, final_gain(preparation), seed=0)

    states = target.hidden_states(tokens, (0, 1, 2))
    assert states.taps is not None
    embeddings = target.weights.embedding[tokens].float()
    with torch.no_grad():
        features, _ = module.split(reference_layer(module, module.fuse(states.taps.float()), embeddings))
        logits = features @ module.lm_head.weight.T
    torch.testing.assert_close(logits, target.logits(states.final)[:, vocab], rtol=1e-3, atol=1e-3)


def test_the_label_of_a_step_is_the_token_after_the_token_that_the_step_reads(target: Model) -> None:
    rows = compute_tap_rows(target, [conversation((5, 6), (7, 8, 9, 10))], tap_layers=(1,), file=None)
    draft_index = torch.arange(260)  # 259 token ids, and a last entry for labels past the answer's end
    draft_index[[9, 259]] = IGNORED  # token 9 is not in the draft vocabulary
    batch = make_batch(rows, [0], steps=2, draft_index=draft_index)
    assert batch.anchors.tolist() == [1, 2, 3]  # the positions from whose logits the target sampled 7, 8 and 9
    assert batch.tokens[batch.anchors].tolist() == batch.input_tokens[:, 0].tolist() == [7, 8, 9]
    assert batch.input_tokens[:, 1].tolist() == [8, 9, 10]
    assert batch.labels.tolist() == [[8, IGNORED], [IGNORED, 10], [10, IGNORED]]
    assert batch.target_rows[:, 0].tolist() == [1, 2, 3]
    assert batch.hidden.shape[0] == 4
