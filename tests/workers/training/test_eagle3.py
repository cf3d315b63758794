"""EAGLE-3 under training: its loss, its unroll, and that what is simulated is what is served."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from engine.config import EngineConfig
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.eagle3_module import WEIGHTS_FILE, Eagle3
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Request, SamplingParams
from engine.rotary import tables_of
from tests.engine.eagle3_reference import make_config, make_module, reference_layer
from tests.workers.support import Recorder
from tests.workers.training.jobs import training_spec, write_answers
from workers.contracts import Event, Finished, Progress, TrainingSpec
from workers.training.data import IGNORED, Conversation, read_corpus
from workers.training.eagle3.data import make_batch
from workers.training.eagle3.loss import step_loss
from workers.training.eagle3.unroll import Unroll
from workers.training.hidden_states import compute_tap_rows
from workers.training.job import run_training
from workers.training.replay import simulate

BUDGET = 12
FAST = {"max_steps": 60, "evaluate_every": 20, "batch_rows": 8, "epochs": 100, "learning_rate": 3e-3, "patience": 0}


# Loss


def test_the_loss_is_that_of_whole_logits_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
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
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)  # another order of additions


# Unroll


def conversation(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Conversation:
    return Conversation(custom_id="c", prompt_token_ids=prompt, completion_token_ids=completion, cut_by_length=True)


@pytest.fixture(scope="module")
def target(tiny_model: Path) -> Model:
    return load_model(tiny_model, dtype="float32")


def test_the_unroll_is_the_module_run_again_on_what_it_made(target: Model) -> None:
    """Every anchor of two conversations of different lengths, against the definition, position by position."""
    config = make_config(tap_layers=(1, 1, 2), fc_norm=True, norm_output=True)
    module = make_module(config)
    conversations = [conversation((5, 6, 7, 8), (9, 10, 11, 12, 13)), conversation((20, 21), (22, 23, 24))]
    rows = compute_tap_rows(target, conversations, tap_layers=config.taps_of(2), file=None)
    place = torch.full((config.vocab_size + 1,), IGNORED)
    place[module.draft_vocab] = torch.arange(config.draft_vocab_size)
    batch = make_batch(rows, [0, 1], steps=2, place=place)
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
    place = torch.arange(260)
    place[[9, 259]] = IGNORED  # 9 is not in the draft vocabulary
    batch = make_batch(rows, [0], steps=2, place=place)
    assert batch.anchors.tolist() == [1, 2, 3]  # where 7, 8 and 9 were chosen
    assert batch.tokens[batch.anchors].tolist() == batch.drafted[:, 0].tolist() == [7, 8, 9]
    assert batch.drafted[:, 1].tolist() == [8, 9, 10]
    assert batch.labels.tolist() == [[8, IGNORED], [IGNORED, 10], [10, IGNORED]]
    assert batch.chosen[:, 0].tolist() == [1, 2, 3]
    assert batch.hidden.shape[0] == 4


# The job


def requests() -> list[Request]:
    return [
        Request(str(i), (1, 40 + i % 5, 50, 60 + i % 3, 70 + i), SamplingParams(max_tokens=32, temperature=0.0))
        for i in range(16)
    ]


@pytest.fixture(scope="module")
def tokens(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_answers(tmp_path_factory.mktemp("tokens") / "tokens.jsonl", tiny_model, requests())


def make_spec(folder: Path, model: Path, tokens: Path, **hyperparameters: Any) -> TrainingSpec:
    return training_spec(folder, model, tokens, "eagle3", FAST | hyperparameters)


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run_training(make_spec(tmp_path_factory.mktemp("trained"), tiny_model, tokens), Recorder())


def test_training_lengthens_acceptance(trained: Finished) -> None:
    report = json.loads((Path(trained.artifacts["speculator"]) / "report.json").read_text())
    assert report["acceptance_length"] > report["history"][0]["acceptance_length"] + 0.5


def test_what_is_served_is_what_was_simulated(trained: Finished, tiny_model: Path, tokens: Path) -> None:
    model = load_model(tiny_model)
    stored = Eagle3.load(Path(trained.artifacts["speculator"]))
    engine = Engine(model, Eagle3Drafter(stored, model), EngineConfig(draft_budget=BUDGET))
    served = generate(engine, requests())
    accepted = sum(answer.speculation.num_accepted_draft_tokens for answer in served)
    passes = sum(answer.speculation.num_spec_steps for answer in served)

    corpus = read_corpus([tokens], validation_fraction=0.1)
    drafter = Eagle3Drafter(stored, model)
    rows = compute_tap_rows(model, (*corpus.train, *corpus.validation), tap_layers=drafter.tap_layers, file=None)
    simulated = simulate(drafter, rows, model, budget=BUDGET)
    assert simulated.num_passes == 2 * passes  # every answer is there twice
    assert simulated.num_accepted == 2 * accepted
    assert accepted > 0.5 * passes


def test_taps_in_a_file_and_a_restart_give_the_same_weights(
    tmp_path: Path, trained: Finished, tiny_model: Path, tokens: Path
) -> None:
    class Killed(Exception):
        pass

    def kill_late(event: Event) -> None:
        if isinstance(event, Progress) and event.unit == "steps" and event.done == 47:
            raise Killed

    spec = make_spec(tmp_path, tiny_model, tokens, cache_memory_bytes=0)
    with pytest.raises(Killed):
        run_training(spec, kill_late)
    torch.manual_seed(999)  # whatever a new process drew before
    emit = Recorder()
    finished = run_training(spec, emit)
    assert min(event.step for event in emit.of("checkpoint")) > 40  # it did not start from the beginning
    assert finished.result["hidden_states"]["kept_in"] == "file"
    assert weights(finished) == weights(trained)


def weights(finished: Finished) -> bytes:
    return (Path(finished.artifacts["speculator"]) / WEIGHTS_FILE).read_bytes()
