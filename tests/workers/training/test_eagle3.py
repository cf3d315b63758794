"""Training of EAGLE-3: loss and unroll."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from engine.load import load_model
from engine.models.base import Model
from engine.models.rotary import tables_of
from tests.engine.eagle3_reference import make_config, make_module, reference_layer
from workers.training.data import IGNORED, Conversation
from workers.training.eagle3.data import make_batch
from workers.training.eagle3.loss import step_loss
from workers.training.eagle3.unroll import Unroll
from workers.training.hidden_states import compute_tap_rows

# Loss


def test_the_loss_in_chunks_equals_the_loss_of_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.training.eagle3.loss._CHUNK", 4 * 5)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(11, 6, generator=generator, requires_grad=True)
    lm_head = torch.randn(5, 6, generator=generator, requires_grad=True)
    labels = torch.tensor([0, 1, 2, IGNORED, 4, 0, 1, IGNORED, 3, 4, 0])
    target = torch.randn(20, 5, generator=generator).softmax(-1)
    chosen = torch.randperm(20, generator=generator)[:11]

    loss, sums = step_loss(features, lm_head, labels, target, chosen, 0.3)
    found = torch.autograd.grad(loss, (features, lm_head))

    known = labels != IGNORED
    logits = (features @ lm_head.T)[known]
    hard = functional.cross_entropy(logits, labels[known])
    soft = functional.cross_entropy(logits, target[chosen][known])
    expected = torch.autograd.grad(0.7 * hard + 0.3 * soft, (features, lm_head))
    torch.testing.assert_close(loss, 0.7 * hard + 0.3 * soft)
    assert sums.count == 9
    assert sums.nats == pytest.approx(hard.item() * 9, rel=1e-5)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)  # the order of additions differs


# Unroll


def conversation(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Conversation:
    return Conversation(custom_id="c", prompt_token_ids=prompt, completion_token_ids=completion, cut_by_length=True)


@pytest.fixture(scope="module")
def target(tiny_model: Path) -> Model:
    return load_model(tiny_model, dtype="float32")


def test_the_unroll_equals_running_the_module_on_its_own_output(target: Model) -> None:
    """Compares every anchor of two conversations of different lengths with the definition, position by position."""
    config = make_config(tap_layers=(1, 1, 2), fc_norm=True, norm_output=True)
    module = make_module(config)
    conversations = [conversation((5, 6, 7, 8), (9, 10, 11, 12, 13)), conversation((20, 21), (22, 23, 24))]
    rows = compute_tap_rows(target, conversations, tap_layers=config.taps_of(2), file=None)
    draft_index = torch.full((config.vocab_size + 1,), IGNORED)
    draft_index[module.draft_vocab] = torch.arange(config.draft_vocab_size)
    batch = make_batch(rows, [0, 1], steps=2, draft_index=draft_index)
    tables = tables_of(config.layer_config(), config.head_dim, 64)
    with torch.no_grad():
        first, second = Unroll(module, target.weights.embedding, tables).outputs(batch, 2)
    anchor = 0
    for one in conversations:
        tokens = [*one.prompt_token_ids, *one.completion_token_ids]
        for position in range(len(one.prompt_token_ids) - 1, len(tokens) - 2):
            known = torch.tensor(tokens[: position + 3])
            taps = target.hidden_states(known[: position + 1], config.taps_of(2)).taps
            assert taps is not None
            embeddings = target.weights.embedding[known].float()
            with torch.no_grad():
                g = module.fuse(taps.float())
                read, fed_back = module.split(reference_layer(module, g, embeddings[1 : position + 2]))
                again, _ = module.split(
                    reference_layer(module, torch.cat([g, fed_back[-1:]]), embeddings[1 : position + 3])
                )
            torch.testing.assert_close(first[anchor], read[-1], rtol=1e-4, atol=1e-4)
            if position + 2 < len(tokens):
                torch.testing.assert_close(second[anchor], again[-1], rtol=1e-4, atol=1e-4)
            anchor += 1
    assert anchor == batch.labels.shape[0] == 6


def test_labels_are_the_tokens_after_the_last_known_one(target: Model) -> None:
    rows = compute_tap_rows(target, [conversation((5, 6), (7, 8, 9, 10))], tap_layers=(1,), file=None)
    draft_index = torch.arange(260)
    draft_index[[9, 259]] = IGNORED  # 9 is not in the draft vocabulary
    batch = make_batch(rows, [0], steps=2, draft_index=draft_index)
    assert batch.anchors.tolist() == [1, 2, 3]  # where 7, 8 and 9 were chosen
    assert batch.tokens[batch.anchors].tolist() == batch.input_tokens[:, 0].tolist() == [7, 8, 9]
    assert batch.input_tokens[:, 1].tolist() == [8, 9, 10]
    assert batch.labels.tolist() == [[8, IGNORED], [IGNORED, 10], [10, IGNORED]]
    assert batch.target_rows[:, 0].tolist() == [1, 2, 3]
    assert batch.hidden.shape[0] == 4
