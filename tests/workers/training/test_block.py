"""Block drafters under training: blocks, loss, and that what is simulated is what is served."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from engine.config import EngineConfig
from engine.drafters.block import BlockDrafter
from engine.drafters.block_model import WEIGHTS_FILE, BlockModel
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.request import Request, SamplingParams
from tests.workers.support import Recorder
from tests.workers.training.jobs import training_spec, write_answers
from workers.contracts import Event, Finished, Progress, TrainingSpec
from workers.training.block.data import blocks_of, num_anchors
from workers.training.block.loss import block_loss, weighted
from workers.training.data import IGNORED, Conversation, read_corpus
from workers.training.hidden_states import compute_tap_rows
from workers.training.job import run_training
from workers.training.replay import simulate

BUDGET = 12
FAST = {
    **{"max_steps": 40, "evaluate_every": 20, "batch_rows": 8, "epochs": 100, "learning_rate": 6e-3, "patience": 0},
    **{"anchors": 8, "num_taps": 2, "markov_rank": 8, "block_size": 4, "draft_budget": BUDGET},
}


def test_a_block_is_to_guess_what_follows_its_anchor(tiny_model: Path) -> None:
    target = load_model(tiny_model, dtype="float32")
    prompt, answer = (5, 6, 4), (7, 8, 9, 10)
    one = Conversation(custom_id="c", prompt_token_ids=prompt, completion_token_ids=answer, cut_by_length=True)
    rows = compute_tap_rows(target, [one, one], tap_layers=(1,), file=None)
    place = torch.arange(260)
    place[[9, 259]] = IGNORED  # 9 is not in the draft vocabulary

    blocks = blocks_of(rows, 1, torch.tensor([0, 2]), depths=2, place=place)

    assert num_anchors(rows, 1) == 3
    assert blocks.anchors.tolist() == [3, 5]
    assert blocks.tokens.tolist() == [[7, 8, 9], [9, 10, 0]]
    assert blocks.labels.tolist() == [[8, IGNORED], [10, IGNORED]]
    whole = target.hidden_states(torch.tensor((5, 6, 4, 7, 8, 9)), (1,))
    assert whole.taps is not None
    assert torch.equal(blocks.taps, whole.taps)
    assert torch.equal(blocks.hidden[0], whole.final[3:5])  # what chose 8 and 9
    assert torch.equal(blocks.hidden[1, 0], whole.final[5])


def test_the_loss_is_as_defined() -> None:
    torch.manual_seed(0)
    logits, target, trust = torch.randn(3, 2, 5), torch.randn(3, 2, 5), torch.randn(3, 2)
    labels = torch.tensor([[1, 2], [IGNORED, 4], [0, IGNORED]])

    token, confidence, sums = block_loss(logits, labels, target, trust, soft_target_weight=0.3)
    found = weighted(token, confidence, sums.count, decay=4.0, confidence_weight=0.5)

    expected = 0.0
    for depth in range(2):
        known = labels[:, depth] != IGNORED
        p, q = logits[known, depth], target[known, depth].softmax(-1)
        hard, soft = functional.cross_entropy(p, labels[known, depth]), functional.cross_entropy(p, q)
        agreed = torch.minimum(p.softmax(-1), q).sum(-1)
        bce = functional.binary_cross_entropy(trust[known, depth].sigmoid(), agreed)
        expected += math.exp(-depth / 4.0) * float(0.7 * hard + 0.3 * soft + 0.5 * bce)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert sums.count.tolist() == [2, 2]


def requests() -> list[Request]:
    return [
        Request(str(i), (1, 40 + i % 5, 50, 60 + i % 3, 70 + i), SamplingParams(max_tokens=24, temperature=0.0))
        for i in range(16)
    ]


@pytest.fixture(scope="module")
def tokens(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_answers(tmp_path_factory.mktemp("tokens") / "tokens.jsonl", tiny_model, requests())


def make_spec(folder: Path, model: Path, tokens: Path, **hyperparameters: Any) -> TrainingSpec:
    return training_spec(folder, model, tokens, "block", FAST | hyperparameters)


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run_training(make_spec(tmp_path_factory.mktemp("trained"), tiny_model, tokens), Recorder())


def test_training_lengthens_acceptance(trained: Finished) -> None:
    report = json.loads((Path(trained.artifacts["speculator"]) / "report.json").read_text())
    assert report["acceptance_length"] > report["history"][0]["acceptance_length"] + 0.5


def test_what_is_served_is_what_was_simulated(trained: Finished, tiny_model: Path, tokens: Path) -> None:
    model = load_model(tiny_model)
    stored = BlockModel.load(Path(trained.artifacts["speculator"]))
    engine = Engine(model, BlockDrafter(stored, model), EngineConfig(draft_budget=BUDGET))
    served = generate(engine, requests())
    accepted = sum(answer.speculation.num_accepted_draft_tokens for answer in served)
    passes = sum(answer.speculation.num_spec_steps for answer in served)

    corpus = read_corpus([tokens], validation_fraction=0.1)
    drafter = BlockDrafter(stored, model)
    rows = compute_tap_rows(model, (*corpus.train, *corpus.validation), tap_layers=drafter.tap_layers, file=None)
    simulated = simulate(drafter, rows, model, budget=BUDGET)
    assert simulated.num_passes == 2 * passes  # every answer is there twice
    assert simulated.num_accepted == 2 * accepted
    assert accepted > 0.5 * passes


def test_a_restart_gives_the_same_weights(tmp_path: Path, trained: Finished, tiny_model: Path, tokens: Path) -> None:
    class Killed(Exception):
        pass

    def kill_late(event: Event) -> None:
        if isinstance(event, Progress) and event.unit == "steps" and event.done == 27:
            raise Killed

    spec = make_spec(tmp_path, tiny_model, tokens)
    with pytest.raises(Killed):
        run_training(spec, kill_late)
    torch.manual_seed(999)  # whatever a new process drew before
    assert weights(run_training(spec, Recorder())) == weights(trained)


def weights(finished: Finished) -> bytes:
    return (Path(finished.artifacts["speculator"]) / WEIGHTS_FILE).read_bytes()
