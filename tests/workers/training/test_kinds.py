"""Tests of training that run for every kind of speculator."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.config import EngineConfig
from engine.generate import generate
from engine.load import load_engine
from engine.request import Completion, Request, SamplingParams
from tests.workers.support import Recorder
from tests.workers.training.jobs import training_spec, write_answers
from workers.contracts import Event, Finished, Progress, TrainingSpec
from workers.training.job import run_training

BUDGET = 12  # drafted tokens per verify pass, in the simulation and when served
FAST = {
    **{"max_steps": 40, "evaluate_every": 20, "batch_rows": 8, "epochs": 100, "patience": 0, "draft_budget": BUDGET},
    **{"validation_fraction": 0.25},
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "medusa": FAST | {"learning_rate": 2e-2, "batch_rows": 64},
    "eagle3": FAST | {"learning_rate": 5e-3, "optimizer": "muon"},
    "block": FAST
    | {"learning_rate": 6e-3, "anchors": 8, "num_taps": 2, "markov_rank": 8, "block_size": 4, "num_layers": 1},
    "mtp": FAST | {"learning_rate": 5e-3, "steps": 3},
    "draft_model": FAST | {"learning_rate": 3e-3, "num_layers": 1},
    "turbo_lora": FAST | {"learning_rate": 1e-2, "rank": 4, "num_heads": 3},
}

# peft uses the attribute `is_gradient_checkpointing`, which transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def requests() -> list[Request]:
    """Returns prompts that differ in few tokens, so that their answers have common patterns."""
    return [
        Request(str(i), (1, 40 + i % 5, 50, 60 + i % 3, 70 + i), SamplingParams(max_tokens=24, temperature=0.0))
        for i in range(16)
    ]


@pytest.fixture(scope="module")
def tokens(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_answers(tmp_path_factory.mktemp("tokens") / "tokens.jsonl", tiny_model, requests())


def make_spec(folder: Path, model: Path, tokens: Path, kind: str, **hyperparameters: Any) -> TrainingSpec:
    return training_spec(folder, model, tokens, kind, {**KINDS[kind], **hyperparameters})


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trained(kind: str, tiny_model: Path, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run_training(make_spec(tmp_path_factory.mktemp(kind), tiny_model, tokens, kind), Recorder())


def report_of(finished: Finished) -> Any:
    return json.loads((Path(finished.artifacts["speculator"]) / "report.json").read_text())


def weights_of(finished: Finished) -> dict[str, torch.Tensor]:
    folder = Path(finished.artifacts["speculator"])
    return {f"{p.name}/{n}": t for p in folder.glob("*.safetensors") for n, t in load_file(p).items()}


def serve(model: Path, kind: str, folder: Path, prompts: list[Request], **config: Any) -> list[Completion]:
    return generate(load_engine(model, drafter=kind, speculator_dir=folder, config=EngineConfig(**config)), prompts)


def test_training_increases_the_acceptance_length(trained: Finished) -> None:
    report = report_of(trained)
    assert report["acceptance_length"] > report["history"][0]["acceptance_length"] + 0.2


def test_the_served_acceptance_equals_the_simulated_acceptance(
    trained: Finished, kind: str, tiny_model: Path, tokens: Path
) -> None:
    """The comparison uses the validation conversations, whose ids are in the report."""
    report, folder = report_of(trained), Path(trained.artifacts["speculator"])
    held_out = [r for r in requests() for name in report["validation_ids"] if name.startswith(f"row-{r.request_id}-")]
    prompts = [Request(str(n), r.prompt_token_ids, r.sampling) for n, r in enumerate(held_out)]
    served = [answer.speculation for answer in serve(tiny_model, kind, folder, prompts, draft_budget=BUDGET)]
    accepted, passes = (sum(s.num_accepted_draft_tokens for s in served), sum(s.num_spec_steps for s in served))
    assert 1.0 + accepted / passes == pytest.approx(report["acceptance_length"])


def test_the_served_speculator_does_not_change_answers(trained: Finished, kind: str, tiny_model: Path) -> None:
    folder = Path(trained.artifacts["speculator"])
    drafted = serve(tiny_model, kind, folder, requests())
    plain = serve(tiny_model, kind, folder, requests(), draft_budget=0)
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]


def test_training_that_is_killed_and_restarted_gives_the_same_weights(
    tmp_path: Path, trained: Finished, kind: str, tiny_model: Path, tokens: Path
) -> None:
    class Killed(Exception):
        pass

    def kill_at_step_27(event: Event) -> None:
        if isinstance(event, Progress) and event.unit == "steps" and event.done == 27:
            raise Killed

    spec = make_spec(tmp_path, tiny_model, tokens, kind, cache_memory_bytes=0)  # hidden states go to a file
    with pytest.raises(Killed):
        run_training(spec, kill_at_step_27)
    torch.manual_seed(999)  # a new process has another state of torch's generator
    emit = Recorder()
    found, expected = weights_of(run_training(spec, emit)), weights_of(trained)
    assert [event.step for event in emit.of("checkpoint")] == [40]  # not [20, 40]: it resumed from checkpoint 20
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_training_can_continue_from_a_trained_speculator(
    tmp_path: Path, trained: Finished, kind: str, tiny_model: Path, tokens: Path
) -> None:
    """The first validation of the second run gives the acceptance length with which the first run ended."""
    fields = {"max_steps": 1, "evaluate_every": 1}
    spec = make_spec(tmp_path, tiny_model, tokens, kind, **fields)
    again = TrainingSpec(
        **{name: getattr(spec, name) for name in spec.__slots__}
        | {"initial_speculator_dir": trained.artifacts["speculator"]}
    )
    first = report_of(run_training(again, Recorder()))["history"][0]
    assert first["acceptance_length"] == pytest.approx(report_of(trained)["acceptance_length"])
