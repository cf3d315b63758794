"""Tests of training multi-token-prediction (MTP) modules: the unroll, and the weights from which training starts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.drafters.mtp_model import Mtp
from engine.load import load_model
from engine.models.base import Model
from tests.engine.tiny_speculators import make_mtp
from tests.tiny_model import make_tiny_model
from tests.workers.support import Recorder
from workers.hyperparameters.mtp import MtpHyperparameters
from workers.training.data import Conversation, Corpus
from workers.training.eagle3.data import make_batch
from workers.training.eagle3.steps import step_anchors
from workers.training.hidden_states import compute_tap_rows
from workers.training.mtp.model import existing_module
from workers.training.mtp.unroll import MtpUnroll
from workers.training.preparation import Preparation


def conversation(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Conversation:
    return Conversation(custom_id="c", prompt_token_ids=prompt, completion_token_ids=completion, cut_by_length=True)


CONVERSATIONS = (conversation((5, 6, 7, 8), (9, 10, 11, 12, 13)), conversation((20, 21), (22, 23, 24)))


@pytest.fixture(scope="module")
def target(tiny_model: Path) -> Model:
    return load_model(tiny_model, dtype="float32")


@pytest.mark.parametrize("layer", ["llama", "qwen3"])
def test_the_unroll_equals_running_the_module_on_its_own_output(target: Model, layer: str) -> None:
    """For every anchor, the module is also run without the unroll, on all tokens up to the anchor.

    The first of two runs reads the target's hidden states. The second also reads the output of the first.
    """
    module = make_mtp(model_type=layer)
    rows = compute_tap_rows(target, CONVERSATIONS, tap_layers=(), file=None)
    batch = make_batch(rows, [0, 1], steps=2, draft_index=torch.arange(260))
    with torch.no_grad():
        first, second = MtpUnroll(module, target.weights.embedding, module.rotary_tables(64)).outputs(
            batch, step_anchors(batch.positions[batch.anchors], 2, 1.0)
        )
    anchor = 0
    for each in CONVERSATIONS:
        tokens = [*each.prompt_token_ids, *each.completion_token_ids]
        for position in range(len(each.prompt_token_ids) - 1, len(tokens) - 2):
            hidden = target.hidden_states(torch.tensor(tokens[: position + 1])).final
            expected_first = last_output(module, hidden, tokens, target)
            torch.testing.assert_close(first[anchor], expected_first, rtol=1e-4, atol=1e-4)
            fed_back = torch.cat([hidden, expected_first.unsqueeze(0)])
            expected_second = last_output(module, fed_back, tokens, target)
            torch.testing.assert_close(second[anchor], expected_second, rtol=1e-4, atol=1e-4)
            anchor += 1
    assert anchor == batch.labels.shape[0] == 6


def last_output(module: Mtp, hidden: torch.Tensor, tokens: list[int], target: Model) -> torch.Tensor:
    """Runs the module on T positions, each with the token of the next position, and returns the last output [H].

    hidden: [T, H], the hidden states of the positions.
    """
    following = torch.tensor(tokens[1 : len(hidden) + 1])
    visible = torch.ones(len(hidden), len(hidden), dtype=torch.bool).tril()
    with torch.no_grad():
        out = module(hidden, target.weights.embedding[following].float(), torch.arange(len(hidden)), visible)
    last: torch.Tensor = out[-1]
    return last


def preparation(folder: Path, initial: Path | None = None) -> Preparation:
    corpus = Corpus(train=CONVERSATIONS, validation=CONVERSATIONS, sha256="", num_skipped=0)
    target = load_model(folder)
    return Preparation(
        model_dir=folder,
        target=target,
        corpus=corpus,
        cache=folder / "cache",
        seed=0,
        emit=Recorder(),
        initial=initial,
    )


def test_training_starts_from_the_mtp_module_in_the_files_of_the_model(tmp_path: Path) -> None:
    """Some published models include an MTP module, whose tensors are in the files of the model."""
    folder = make_tiny_model(tmp_path / "model")
    assert existing_module(preparation(folder), MtpHyperparameters()) is None
    own = make_mtp(model_type="llama", intermediate_size=96, head_dim=16)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"model.{name}": tensor.contiguous() for name, tensor in own.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    found = existing_module(preparation(folder), MtpHyperparameters(steps=2))

    assert found is not None
    assert found.config.num_steps == 2
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in own.state_dict().items())


def test_a_draft_vocabulary_is_saved_in_a_separate_file(tmp_path: Path) -> None:
    module = make_mtp()
    module.save(tmp_path)
    assert Mtp.load(tmp_path).draft_vocab is None
    module.draft_vocab = torch.tensor([3, 5, 8])
    module.save(tmp_path)
    assert torch.equal(Mtp.load(tmp_path).draft_vocab, module.draft_vocab)  # type: ignore[arg-type]
    assert load_file(tmp_path / "model.safetensors").keys() == module.state_dict().keys()
