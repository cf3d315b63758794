"""Tests of the training job: the artifact, the simulated and the served acceptance length, and resuming."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import load_file

from engine.config import EngineConfig
from engine.drafters.medusa_heads import WEIGHTS_FILE, MedusaHeads
from engine.errors import SpeculatorNotLoadable
from engine.fingerprint import Fingerprint
from engine.generate import generate
from engine.load import load_engine, load_model
from engine.request import Request, SamplingParams
from tests.workers.support import ROOT, Recorder, token_rows, write_lines
from tests.workers.training.jobs import training_spec, write_answers
from workers.contracts import Checkpoint, Finished, TrainingSpec, decode_event, write_spec
from workers.failures import InvalidInputError, UserConfigError, failed_event
from workers.hyperparameters.loop import LoopParameters
from workers.hyperparameters.medusa import MedusaHyperparameters
from workers.training.checkpoint import load_newest_checkpoint
from workers.training.data import read_corpus
from workers.training.hidden_states import compute_hidden_rows
from workers.training.job import run_training
from workers.training.medusa.method import MedusaMethod

BUDGET = 15  # drafted tokens per verify pass, in the simulation and when served
FAST = {"max_steps": 100, "evaluate_every": 10, "batch_rows": 64, "epochs": 100, "learning_rate": 2e-2, "patience": 0}


def requests() -> list[Request]:
    """Returns prompts that differ in few tokens, so that their answers have common patterns."""
    return [
        Request(str(i), (1, 40 + i % 5, 50, 60 + i % 3, 70 + i), SamplingParams(max_tokens=40, temperature=0.0))
        for i in range(24)
    ]


@pytest.fixture(scope="module")
def tokens(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_answers(tmp_path_factory.mktemp("tokens") / "tokens.jsonl", tiny_model, requests())


def make_spec(folder: Path, model: Path, tokens: Path, **hyperparameters: Any) -> TrainingSpec:
    return training_spec(folder, model, tokens, "medusa", FAST | hyperparameters)


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run_training(make_spec(tmp_path_factory.mktemp("trained"), tiny_model, tokens), Recorder())


def test_the_artifact_records_the_target_data_command_versions_and_file_hashes(trained: Finished, tokens: Path) -> None:
    folder = Path(trained.artifacts["speculator"])
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["target_revision"] == "f00d"
    assert Fingerprint.parse(provenance["system_fingerprint"]).dtype == "float32"
    assert provenance["data_sha256"] == hashlib.sha256(tokens.read_bytes()).hexdigest()
    assert provenance["command"]["hyperparameters"]["max_steps"] == 100
    assert provenance["versions"]["torch"] == version("torch")
    assert (provenance["initial_sha256"], len(provenance["code_sha256"])) == (None, 64)  # None: a new speculator
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert provenance["files"].keys() == names - {"provenance.json"}
    assert provenance["files"][WEIGHTS_FILE] == hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
    report = json.loads((folder / "report.json").read_text())
    assert report["history"][0]["step"] == 0
    assert (report["conversations_train"], report["conversations_validation"]) == (43, 5)  # of 2 x 24 answers


def other_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")


def other_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda _: None, None),
        (other_template, "another chat template than"),
        (other_tokenizer, "another tokenizer than"),
    ],
)
def test_a_speculator_is_refused_if_its_models_tokenizer_or_template_has_changed(
    tmp_path: Path, trained: Finished, tiny_model: Path, change: Callable[[Path], None], named: str | None
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    change(folder)
    with pytest.raises(SpeculatorNotLoadable, match=named) if named else nullcontext():
        load_engine(folder, drafter="medusa", speculator_dir=Path(trained.artifacts["speculator"]))


def test_training_increases_the_acceptance_length(trained: Finished) -> None:
    report = json.loads((Path(trained.artifacts["speculator"]) / "report.json").read_text())
    assert report["acceptance_length"] > report["history"][0]["acceptance_length"] + 0.1


def test_the_served_acceptance_equals_the_simulated_acceptance(
    trained: Finished, tiny_model: Path, tokens: Path
) -> None:
    folder = Path(trained.artifacts["speculator"])
    config = EngineConfig(draft_budget=BUDGET)
    served = generate(load_engine(tiny_model, drafter="medusa", speculator_dir=folder, config=config), requests())
    accepted = sum(answer.speculation.num_accepted_draft_tokens for answer in served)
    passes = sum(answer.speculation.num_spec_steps for answer in served)

    simulated = simulate(folder, tiny_model, tokens)
    assert 1.0 + accepted / passes == pytest.approx(simulated, rel=0.01)
    assert accepted > 0.2 * passes  # otherwise a simulation that accepts nothing would pass the comparison


def simulate(folder: Path, model: Path, tokens: Path) -> float:
    """Returns the simulated acceptance length over all answers, with the stored weights."""
    decoder, stored = load_model(model), MedusaHeads.load(folder)
    corpus = read_corpus([tokens], validation_fraction=0.1)
    rows = compute_hidden_rows(decoder, (*corpus.train, *corpus.validation), file=None)
    parameters = MedusaHyperparameters(loop=LoopParameters(draft_budget=BUDGET))
    return MedusaMethod(decoder, parameters, stored, train=rows, validation=rows).simulate(rows).length


def test_training_gives_the_same_weights_if_hidden_states_are_kept_in_a_file(
    tmp_path: Path, trained: Finished, tiny_model: Path, tokens: Path
) -> None:
    finished = run_training(make_spec(tmp_path, tiny_model, tokens, cache_memory_bytes=0), Recorder())
    assert finished.result["hidden_states"]["kept_in"] == "file"
    assert weights(finished) == weights(trained)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "output"]  # the cache file was removed


def weights(finished: Finished) -> bytes:
    return (Path(finished.artifacts["speculator"]) / WEIGHTS_FILE).read_bytes()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_a_job_killed_at_random_steps_ends_with_the_same_bits_as_an_undisturbed_job(
    tmp_path: Path, tiny_model: Path, tokens: Path, num_kills: int
) -> None:
    steps = {"max_steps": 40 * (num_kills + 1), "optimizer": "muon", "accumulate": 2}
    finished = run_training(make_spec(tmp_path / "a", tiny_model, tokens, **steps), Recorder())
    disturbed = make_spec(tmp_path / "b", tiny_model, tokens, **steps)
    draw = random.Random(num_kills)
    write_spec(disturbed, tmp_path / "spec.json")
    for _ in range(num_kills):
        dying = ("-m", "tests.workers.training.dying", str(tmp_path / "spec.json"), str(draw.randint(1, 60)))
        assert subprocess.run([sys.executable, *dying], cwd=ROOT).returncode == -signal.SIGKILL
    emit = Recorder()
    resumed = run_training(disturbed, emit)
    assert min(event.step for event in emit.of("checkpoint")) > 10  # an earlier process wrote checkpoint 10
    assert weights(resumed) == weights(finished)
    assert resumed.result["acceptance_length"] == finished.result["acceptance_length"]


def test_training_with_two_processes_gives_the_losses_of_one_process(
    tmp_path: Path, tiny_model: Path, tokens: Path
) -> None:
    fields = {"max_steps": 20, "evaluate_every": 10, "patience": 0, "accumulate": 2, "steps": 2}
    spec = training_spec(tmp_path / "one", tiny_model, tokens, "eagle3", fields)
    history_of_one = history(run_training(spec, Recorder()))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "workers.training")
    options = ("--method", "eagle3", "--answers", str(tokens), "--hyperparameters", json.dumps(fields))
    command = [sys.executable, *torchrun, str(tiny_model), "no-prompts", str(tmp_path / "two"), *options]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    events = [decode_event(line) for line in done.stdout.splitlines()]  # only rank 0 writes events
    assert [event.step for event in events if isinstance(event, Checkpoint)] == [10, 20]
    finished = events[-1]
    assert isinstance(finished, Finished)
    of_one, of_two = (load_newest_checkpoint(tmp_path / name / "checkpoint") for name in ("one", "two"))
    assert of_one is not None
    assert of_two is not None
    assert {n: t.shape for n, t in of_one.tensors.items()} == {n: t.shape for n, t in of_two.tensors.items()}
    for one, two in zip(history_of_one, history(finished), strict=True):
        assert two["step"] == one["step"]
        assert two.get("loss") == pytest.approx(one.get("loss"), abs=1e-3)
        assert two["validation_loss"] == pytest.approx(one["validation_loss"], abs=1e-3)


def history(finished: Finished) -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads((Path(finished.artifacts["speculator"]) / "report.json").read_text())[
        "history"
    ]
    return found


def test_the_artifact_has_the_tensorboard_file_with_all_evaluations(trained: Finished) -> None:
    (events,) = (Path(trained.artifacts["speculator"]) / "tensorboard").iterdir()
    assert events.name.startswith("events.out.tfevents.")
    assert events.read_bytes().count(b"acceptance_length") == 11  # evaluations: at steps 0, 10, ... 100


def test_the_artifact_has_the_plots_as_svg_files(trained: Finished) -> None:
    plots = sorted((Path(trained.artifacts["speculator"]) / "plots").iterdir())
    assert [path.name for path in plots] == [
        "acceptance_over_steps.svg", "acceptance_per_position.svg", "loss.svg",
    ]  # fmt: skip
    for path in plots:
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_an_unknown_method_raises_a_user_config_error(tmp_path: Path, tiny_model: Path, tokens: Path) -> None:
    with pytest.raises(UserConfigError, match=r"method must be one of medusa, .*, got 'psychic'"):
        run_training(replace(make_spec(tmp_path, tiny_model, tokens), method="psychic"), Recorder())


def test_a_hyperparameter_of_a_wrong_type_raises_a_user_config_error(
    tmp_path: Path, tiny_model: Path, tokens: Path
) -> None:
    with pytest.raises(UserConfigError, match=r"num_heads must be int, got 2\.5") as raised:
        run_training(make_spec(tmp_path, tiny_model, tokens, num_heads=2.5), Recorder())
    assert raised.value.code == "invalid_hyperparameters"


def test_too_few_answers_fail_the_job_as_invalid_input(tmp_path: Path, tiny_model: Path) -> None:
    tokens = write_lines(tmp_path / "tokens.jsonl", token_rows([[5, 6]] * 3))
    with pytest.raises(InvalidInputError) as raised:
        run_training(make_spec(tmp_path, tiny_model, tokens), Recorder())
    failed = failed_event(raised.value)
    assert (failed.failure_class, failed.code) == ("invalid_input", "too_few_conversations")


def test_training_stores_a_different_lm_head_for_each_untied_head(
    tmp_path: Path, tiny_model: Path, tokens: Path
) -> None:
    finished = run_training(make_spec(tmp_path, tiny_model, tokens, tied=False, num_heads=2, max_steps=10), Recorder())
    stored = load_file(Path(finished.artifacts["speculator"]) / WEIGHTS_FILE)
    size = finished.result["draft_vocab_size"]
    assert stored["0.1.weight"].shape == stored["1.1.weight"].shape == (size, 64)
    assert not torch.equal(stored["0.1.weight"], stored["1.1.weight"])
