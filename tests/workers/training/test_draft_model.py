"""Tests of the layers, the head and the training batches of draft models, which consist of layers of their target."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from engine.load import load_model
from workers.training.data import IGNORED, Conversation
from workers.training.draft_model.data import make_batch
from workers.training.draft_model.model import DraftModel, head_for_training, kept_layers
from workers.training.hidden_states import compute_tap_rows


@pytest.mark.parametrize(
    ("num_layers", "wanted", "kept"),
    # 0 wanted layers: an eighth of the target's layers
    [(30, 0, [0, 14, 29]), (30, 4, [0, 9, 19, 29]), (4, 1, [0]), (4, 9, [0, 1, 2, 3]), (4, 0, [0]), (1, 0, [0])],
)
def test_the_layers_of_a_draft_model_are_evenly_spread_over_the_target(
    num_layers: int, wanted: int, kept: list[int]
) -> None:
    assert kept_layers(num_layers, wanted) == kept


def test_a_draft_model_with_all_layers_equals_its_target(tmp_path: Path, tiny_model: Path) -> None:
    target = load_model(tiny_model, dtype="float32")
    draft = DraftModel.from_target(tiny_model, num_layers=2, draft_vocab=torch.arange(259))
    draft.save(tmp_path, model_dir=tiny_model, lm_head=target.lm_head, base_model="target")
    served = load_model(tmp_path, dtype="float32")
    tokens = torch.tensor([5, 6, 7, 8])
    hidden = target.hidden_states(tokens).final
    assert torch.equal(served.hidden_states(tokens).final, hidden)
    assert torch.equal(served.logits(hidden), target.logits(hidden))
    with torch.no_grad():
        torch.testing.assert_close(draft(tokens.unsqueeze(0))[0], hidden, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("token_ids", [[3, 4, 9, 200], list(range(259))])
def test_the_head_used_in_training_gives_the_probabilities_of_the_served_head(
    tmp_path: Path, tiny_model: Path, token_ids: list[int]
) -> None:
    target, draft_vocab = load_model(tiny_model, dtype="float32"), torch.tensor(token_ids)
    draft = DraftModel.from_target(tiny_model, num_layers=1, draft_vocab=draft_vocab)
    draft.save(tmp_path, model_dir=tiny_model, lm_head=target.lm_head, base_model="target")
    features = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    served = load_model(tmp_path, dtype="float32").logits(features).log_softmax(-1)
    head = head_for_training(target.lm_head, draft_vocab)
    # The head has a column of biases, so a 1 is appended to the features. The head's last row is for all other tokens.
    trained = functional.linear(functional.pad(features, (0, 1), value=1.0), head).log_softmax(-1)
    torch.testing.assert_close(trained[:, :-1], served[:, draft_vocab], rtol=1e-4, atol=1e-5)
    assert torch.equal(DraftModel.load(tmp_path).draft_vocab, draft_vocab)


def test_labels_of_a_draft_model_are_the_next_tokens_of_the_answer(tiny_model: Path) -> None:
    target = load_model(tiny_model, dtype="float32")
    long, short = ((5, 6, 4), (7, 8, 9, 10)), ((20,), (21, 22))
    conversations = [
        Conversation(custom_id="c", prompt_token_ids=p, completion_token_ids=c, cut_by_length=True)
        for p, c in (long, short)
    ]
    rows = compute_tap_rows(target, conversations, tap_layers=(), file=None)
    draft_index = torch.arange(259)
    draft_index[9] = IGNORED  # not in the draft vocabulary

    batch = make_batch(rows, [0, 1], draft_index=draft_index)

    assert batch.tokens.tolist() == [[5, 6, 4, 7, 8, 9], [20, 21, 0, 0, 0, 0]]
    assert batch.tokens.flatten()[batch.flat_index].tolist() == [7, 8, 9, 21]
    assert batch.labels.tolist() == [8, IGNORED, 10, 22]  # nothing follows 10, because the answer was cut there
    assert torch.equal(batch.hidden[0], target.hidden_states(torch.tensor((5, 6, 4, 7))).final[-1])
