"""Tests of the kind `auto`, which trains several kinds and keeps the fastest speculator."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.generate import generate
from engine.load import load_engine
from engine.request import Request, SamplingParams
from tests.workers.support import Recorder
from tests.workers.training.jobs import training_spec, write_answers
from workers.contracts import Checkpoint, Event, Finished, Progress, TrainingSpec
from workers.failures import InvalidInputError, UserConfigError
from workers.hyperparameters.auto import AutoHyperparameters
from workers.hyperparameters.fields import HyperparameterError
from workers.hyperparameters.kinds import read_hyperparameters
from workers.kinds import AUTO_CANDIDATES
from workers.training import auto
from workers.training.auto import run_auto_training
from workers.training.data import Conversation
from workers.training.job import run_training
from workers.training.speed import tokens_per_second

FAST = {"max_steps": 6, "evaluate_every": 3, "batch_rows": 8, "epochs": 100, "patience": 0, "validation_fraction": 0.25}


class Killed(Exception):
    """Stands for the end of the process."""


def requests() -> list[Request]:
    return [
        Request(str(i), (1, 40 + i % 5, 50, 60 + i % 3, 70 + i), SamplingParams(max_tokens=16, temperature=0.0))
        for i in range(12)
    ]


@pytest.fixture(scope="module")
def tokens(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_answers(tmp_path_factory.mktemp("tokens") / "tokens.jsonl", tiny_model, requests())


def make_spec(folder: Path, model: Path, tokens: Path, **hyperparameters: Any) -> TrainingSpec:
    return training_spec(folder, model, tokens, "auto", {**FAST, **hyperparameters})


@pytest.fixture(scope="module")
def events() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tokens: Path, tmp_path_factory: pytest.TempPathFactory, events: Recorder) -> Finished:
    return run_auto_training(make_spec(tmp_path_factory.mktemp("trained"), tiny_model, tokens), events)


def test_the_report_has_the_speeds_of_all_candidates_and_the_artifact_is_the_fastest(trained: Finished) -> None:
    candidates = {each["kind"]: each for each in trained.result["auto"]["candidates"]}
    assert tuple(candidates) == AUTO_CANDIDATES
    assert all(each["tokens_per_second"] > 0 and each["steps"] == 6 for each in candidates.values())
    fastest = max(candidates, key=lambda kind: candidates[kind]["tokens_per_second"])
    assert trained.result["method"] == fastest
    report = json.loads((Path(trained.artifacts["speculator"]) / "report.json").read_text())
    assert report["method"] == fastest
    assert trained.result["auto"]["plain_tokens_per_second"] > 0
    assert trained.result["auto"]["suffix_tokens_per_second"] > 0


@pytest.mark.parametrize("winner", AUTO_CANDIDATES)
def test_the_candidate_with_the_highest_measured_speed_wins(
    tmp_path: Path, tiny_model: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch, winner: str
) -> None:
    speeds = {"none": 50.0, "suffix": 90.0, **{f"{kind}+suffix": 70.0 for kind in AUTO_CANDIDATES}}
    monkeypatch.setattr(auto, "tokens_per_second", lambda *_, **__: speeds | {f"{winner}+suffix": 80.0})
    finished = run_auto_training(make_spec(tmp_path, tiny_model, tokens, max_steps=1), Recorder())
    assert finished.result["method"] == winner
    assert finished.result["auto"]["suffix_tokens_per_second"] == 90.0


def test_the_kept_speculator_changes_no_answer(trained: Finished, tiny_model: Path) -> None:
    folder, kind = Path(trained.artifacts["speculator"]), trained.result["method"]
    plain = generate(load_engine(tiny_model), requests())
    served = generate(load_engine(tiny_model, drafter=kind, speculator_dir=folder), requests())
    assert [answer.token_ids for answer in served] == [answer.token_ids for answer in plain]


def test_progress_never_goes_back_and_steps_of_checkpoints_rise(trained: Finished, events: Recorder) -> None:
    shares = [
        event.done / event.total for event in events.events if isinstance(event, Progress) if event.unit == "percent"
    ]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    steps = [event.step for event in events.events if isinstance(event, Checkpoint)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 14  # the steps of both candidates and the ends of their training


def test_a_new_attempt_keeps_trained_candidates_and_continues_the_one_in_training(
    tmp_path: Path, tiny_model: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt gets only the files of the last checkpoint, as from the supervisor."""
    last: list[Checkpoint] = []

    def die_in_the_second_candidate(event: Event) -> None:
        if isinstance(event, Checkpoint):
            last.append(event)
            if event.step == 10:  # the first candidate's six steps and end, and three steps of the second candidate
                raise Killed

    with pytest.raises(Killed):
        run_auto_training(make_spec(tmp_path / "first", tiny_model, tokens), die_in_the_second_candidate)
    second = make_spec(tmp_path / "second", tiny_model, tokens)
    shutil.copytree(last[-1].path, second.checkpoint_dir)
    shutil.rmtree(tmp_path / "first")

    methods: list[str] = []
    recorder = Recorder()

    def recorded(spec: TrainingSpec, *args: Any, **options: Any) -> Finished:
        methods.append(spec.method)
        return run_training(spec, *args, **options)

    monkeypatch.setattr(auto, "run_training", recorded)
    finished = run_auto_training(second, recorder)
    assert methods == [AUTO_CANDIDATES[1]]
    assert next(event.step for event in recorder.events if isinstance(event, Checkpoint)) > 10
    assert [each["steps"] for each in finished.result["auto"]["candidates"]] == [6, 6]


@pytest.mark.parametrize("broken", AUTO_CANDIDATES)
def test_a_candidate_that_cannot_be_trained_does_not_lose_the_other(
    tmp_path: Path, tiny_model: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def sometimes(spec: TrainingSpec, *args: Any, **options: Any) -> Finished:
        if spec.method == broken:
            raise UserConfigError("does_not_suit", "the model has no such layer")
        return run_training(spec, *args, **options)

    monkeypatch.setattr(auto, "run_training", sometimes)
    finished = run_auto_training(make_spec(tmp_path, tiny_model, tokens, max_steps=1), Recorder())
    assert finished.result["method"] != broken
    assert finished.result["auto"]["failed"] == [{"kind": broken, "error": "the model has no such layer"}]


def test_a_failure_of_the_machine_ends_the_attempt(
    tmp_path: Path, tiny_model: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(spec: TrainingSpec, *args: Any, **options: Any) -> Finished:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(auto, "run_training", fail)
    with pytest.raises(OSError, match="No space left"):
        run_auto_training(make_spec(tmp_path, tiny_model, tokens), Recorder())


def test_if_no_candidate_can_be_trained_the_job_fails_with_the_last_error(
    tmp_path: Path, tiny_model: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(spec: TrainingSpec, *args: Any, **options: Any) -> Finished:
        raise UserConfigError("does_not_suit", f"no {spec.method}")

    monkeypatch.setattr(auto, "run_training", never)
    with pytest.raises(UserConfigError, match=f"no {AUTO_CANDIDATES[-1]}"):
        run_auto_training(make_spec(tmp_path, tiny_model, tokens), Recorder())


def test_only_conversations_that_fit_the_engines_are_measured(tmp_path: Path, tiny_model: Path, tokens: Path) -> None:
    spec = make_spec(tmp_path, tiny_model, tokens)
    parameters = read_hyperparameters("auto", spec.hyperparameters)
    assert isinstance(parameters, AutoHyperparameters)
    measured = auto._measured(spec, parameters, max_tokens=21)  # prompts of 5 and answers of up to 16 tokens
    assert measured
    assert all(each.num_tokens <= 21 for each in measured)
    with pytest.raises(InvalidInputError, match="context of 5 tokens"):
        auto._measured(spec, parameters, max_tokens=5)


def test_candidates_share_the_training_time_and_one_split(
    tmp_path: Path, tiny_model: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the training reports that each candidate took half a second less than it was allowed."""
    specs: list[TrainingSpec] = []

    def pretended(spec: TrainingSpec, *_: Any, **__: Any) -> Finished:
        specs.append(spec)
        folder = Path(spec.output_dir)
        folder.mkdir(parents=True)
        result = {"acceptance_length": 2.0, "steps": 1, "elapsed_seconds": spec.hyperparameters["max_seconds"] - 0.5}
        return Finished(result=result | {"method": spec.method}, artifacts={"speculator": str(folder)})

    monkeypatch.setattr(auto, "run_training", pretended)
    monkeypatch.setattr(
        auto, "_speeds", lambda *_: {"none": 1.0, "suffix": 1.0, "medusa+suffix": 2.0, "eagle3+suffix": 3.0}
    )
    run_auto_training(make_spec(tmp_path, tiny_model, tokens, max_seconds=100.0), Recorder())
    assert [spec.hyperparameters["max_seconds"] for spec in specs] == [25.0, 75.5]
    assert {spec.hyperparameters["validation_fraction"] for spec in specs} == {0.25}


def test_the_engines_take_turns_in_alternating_order(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {"a": load_engine(tiny_model), "b": load_engine(tiny_model)}
    names = {id(engine): name for name, engine in engines.items()}
    turns: list[tuple[str, int]] = []
    from workers.training import speed

    def recorded(engine: Any, requests: list[Request]) -> Any:
        turns.append((names[id(engine)], len(requests)))
        return generate(engine, requests)

    monkeypatch.setattr(speed, "generate", recorded)
    ticks = iter(range(1000))
    conversations = [
        Conversation(custom_id=str(i), prompt_token_ids=(1, 2 + i), completion_token_ids=(7,) * 5, cut_by_length=False)
        for i in range(3)
    ]
    speeds = tokens_per_second(engines, conversations, concurrency=2, clock=lambda: float(next(ticks)))
    assert turns == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("b", 1), ("a", 1)]
    assert speeds == {"a": 7.5, "b": 7.5}  # 15 tokens in two turns, each of which the clock counts as one second


def test_auto_continues_from_no_speculator(tmp_path: Path, tiny_model: Path, tokens: Path) -> None:
    spec = replace(make_spec(tmp_path, tiny_model, tokens), initial_speculator_dir=str(tmp_path))
    with pytest.raises(UserConfigError, match="name its kind"):
        run_auto_training(spec, Recorder())


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"num_heads": 3}, "num_heads"),
        ({"measured_answers": 0}, "measured_answers"),
        ({"export_as": "none"}, "export_as"),
    ],
)
def test_hyperparameters_that_do_not_suit_all_candidates_are_refused(values: dict[str, Any], name: str) -> None:
    with pytest.raises(HyperparameterError) as refused:
        read_hyperparameters("auto", values)
    assert refused.value.name == name
