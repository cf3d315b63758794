"""Trains a speculator of each candidate kind, measures how fast each of them answers, and keeps the fastest.

    candidate 1 ─▶ run_training ─┐
    candidate 2 ─▶ run_training ─┴▶ answers to held-out prompts, in turns with plain and suffix decoding ─▶ the fastest

The checkpoint folder of the job contains, in addition to the candidate in training, the speculators of the candidates
whose training has ended, so that a new attempt does not train these again.
"""

import gc
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.load import load_drafter, load_model
from engine.loop import Engine
from engine.planned import fit
from workers.contracts import Checkpoint, Event, FailureClass, Finished, Metrics, Progress, TrainingSpec
from workers.emitter import Emit
from workers.failures import InvalidInputError, UserConfigError, failed_event
from workers.hyperparameters.auto import AutoHyperparameters
from workers.hyperparameters.fields import HyperparameterError
from workers.hyperparameters.kinds import loop_values, read_hyperparameters
from workers.inference.loading import loading_failures, use_adapter
from workers.kinds import AUTO, AUTO_CANDIDATES, served_drafter
from workers.training.data import Conversation, read_corpus
from workers.training.job import run_training
from workers.training.kept_states import KeptStates
from workers.training.speed import tokens_per_second

PLAIN, SUFFIX = "none", "suffix"
# Weights by which `max_seconds` is divided. A step of EAGLE-3 takes several times as long as a step of Medusa.
_WEIGHTS = {"medusa": 1.0, "eagle3": 3.0}
_MEASURING_SHARE = 0.05  # of the job's progress
# Failures that another attempt would repeat. After any other failure, the next attempt trains the candidate again.
_NOT_RETRIED = (FailureClass.USER_CONFIG, FailureClass.INVALID_INPUT, FailureClass.OUT_OF_MEMORY)
_PREFIX = "candidates-"
_NUM_RETAINED = 2  # checkpoints; the supervisor may still read the older one

logger = logging.getLogger(__name__)


def run_auto_training(
    spec: TrainingSpec,
    emit: Emit,
    *,
    kept: KeptStates | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Finished:
    """Returns the artifact and report of the fastest candidate.

    The report's `auto` has the speed of each candidate, or its error if it could not be trained. If no candidate could
    be trained, the error of the last candidate is raised.
    """
    failures: dict[str, Exception] = {}
    parameters = _read_parameters(spec)
    checkpoints = _Checkpoints(Path(spec.checkpoint_dir))
    trained = checkpoints.trained()
    for kind in AUTO_CANDIDATES:
        if kind in trained:
            continue
        candidate = _candidate_spec(spec, parameters, kind, trained, checkpoints)
        forward = _Forward(emit, checkpoints, kind, trained)
        try:
            finished = run_training(candidate, forward, kept=kept, clock=clock)
        except Exception as error:
            if failed_event(error).failure_class not in _NOT_RETRIED:
                raise
            logger.exception("the candidate %s could not be trained", kind)
            failures[kind] = error
            continue
        checkpoints.keep(kind, finished)
        trained = checkpoints.trained()
        emit(Checkpoint(path=str(checkpoints.write(None)), step=_steps(trained)))
    if not trained:
        raise failures[AUTO_CANDIDATES[-1]]
    speeds = _speeds(spec, parameters, trained)
    emit(Progress(done=100, total=100, unit="percent"))
    return _finished(spec, trained, speeds, failures)


def _read_parameters(spec: TrainingSpec) -> AutoHyperparameters:
    try:
        parameters = read_hyperparameters(AUTO, spec.hyperparameters)
    except HyperparameterError as error:
        raise UserConfigError("invalid_hyperparameters", str(error)) from error
    assert isinstance(parameters, AutoHyperparameters), "the class is found by the name of the kind"
    if spec.initial_speculator_dir is not None:
        raise UserConfigError("invalid_hyperparameters", "kind auto cannot continue from a speculator; name its kind")
    return parameters


@dataclass(frozen=True, slots=True)
class _Trained:
    """A candidate whose training has ended. result: its training report."""

    folder: Path
    result: Mapping[str, Any]


class _Checkpoints:
    """The job's checkpoint folder.

    trained/KIND/speculator, trained/KIND/result.json    a candidate whose training has ended
    training/KIND/                                       checkpoints of the candidate in training
    candidates-00000120/                                 a checkpoint of the job: hard links to all of the above

    The supervisor restores the files of one checkpoint of the job directly into the folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def trained(self) -> dict[str, _Trained]:
        results = {kind: self._folder / "trained" / kind / "result.json" for kind in AUTO_CANDIDATES}
        return {
            kind: _Trained(path.parent / "speculator", json.loads(path.read_text()))
            for kind, path in results.items()
            if path.exists()
        }

    def training(self, kind: str) -> Path:
        return self._folder / "training" / kind

    def keep(self, kind: str, finished: Finished) -> None:
        """Copies the speculator of a candidate, and deletes the candidate's checkpoints."""
        folder = self._folder / "trained" / kind
        partial = folder.with_name(f".{kind}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(finished.artifacts["speculator"], partial / "speculator")
        (partial / "result.json").write_text(json.dumps(finished.result))
        partial.rename(folder)
        shutil.rmtree(self.training(kind), ignore_errors=True)

    def write(self, training: tuple[str, Path] | None) -> Path:
        """Writes a checkpoint of the job. training: the candidate in training and its checkpoint.

        Effects: all but the newest two checkpoints are deleted.
        """
        old = sorted(self._folder.glob(f"{_PREFIX}*"))
        number = int(old[-1].name.removeprefix(_PREFIX)) + 1 if old else 0
        folder = self._folder / f"{_PREFIX}{number:08d}"
        partial = self._folder / f".{folder.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for kind, trained in self.trained().items():
            shutil.copytree(trained.folder.parent, partial / "trained" / kind, copy_function=os.link)
        if training is not None:
            kind, checkpoint = training
            shutil.copytree(checkpoint, partial / "training" / kind, copy_function=os.link)
        partial.rename(folder)
        for each in [*old, folder][:-_NUM_RETAINED]:
            shutil.rmtree(each)
        return folder


class _Forward:
    """Emits the events of a candidate's training as events of the job."""

    def __init__(self, emit: Emit, checkpoints: _Checkpoints, kind: str, trained: Mapping[str, _Trained]) -> None:
        self._emit, self._checkpoints, self._kind = emit, checkpoints, kind
        self._first_step = _steps(trained)
        whole = sum(_WEIGHTS.values()) / (1.0 - _MEASURING_SHARE)
        self._before = sum(_WEIGHTS[each] for each in trained) / whole
        self._share = _WEIGHTS[kind] / whole

    def __call__(self, event: Event) -> None:
        match event:
            case Checkpoint():
                path = self._checkpoints.write((self._kind, Path(event.path)))
                event = Checkpoint(path=str(path), step=self._first_step + event.step)
            case Metrics():
                event = replace(event, step=self._first_step + event.step)
            case Progress(unit="steps"):
                done = self._before + self._share * event.done / max(1, event.total)
                event = Progress(done=int(100 * done), total=100, unit="percent")
        self._emit(event)


def _steps(trained: Mapping[str, _Trained]) -> int:
    """Returns the steps of the job so far. The end of a candidate's training counts as a step, because storage names
    checkpoints by their steps, and a candidate's last checkpoint must not be overwritten while it is the newest."""
    return sum(each.result["steps"] + 1 for each in trained.values())


def _candidate_spec(
    spec: TrainingSpec,
    parameters: AutoHyperparameters,
    kind: str,
    trained: Mapping[str, _Trained],
    checkpoints: _Checkpoints,
) -> TrainingSpec:
    """Returns the spec of a candidate's training.

    The part of `max_seconds` that earlier candidates have not used is divided among the remaining candidates.
    """
    # All candidates split the data in the same way, so that none is trained on the answers that are measured.
    values = {**loop_values(spec.hyperparameters), "validation_fraction": parameters.loop.validation_fraction}
    if parameters.loop.max_seconds is not None:
        left = parameters.loop.max_seconds - sum(each.result["elapsed_seconds"] for each in trained.values())
        open_weights = sum(weight for each, weight in _WEIGHTS.items() if each not in trained)
        values["max_seconds"] = max(0.1, left * _WEIGHTS[kind] / open_weights)
    return replace(
        spec,
        method=kind,
        hyperparameters=values,
        output_dir=str(Path(spec.output_dir) / kind),
        checkpoint_dir=str(checkpoints.training(kind)),
    )


def _drafter(spec: TrainingSpec, kind: str) -> str:
    return served_drafter(kind, with_suffix_decoding=spec.with_suffix_decoding)


def _speeds(spec: TrainingSpec, parameters: AutoHyperparameters, trained: Mapping[str, _Trained]) -> dict[str, float]:
    """Returns the tokens per second of each drafter: `none`, `suffix` and those of the candidates."""
    model_dir = Path(spec.model_dir)
    folders = {_drafter(spec, kind): each.folder for kind, each in trained.items()}
    _return_memory()
    with loading_failures():
        config = fit(  # before anything is loaded, because it reads the free memory
            EngineConfig(max_batch_size=parameters.measured_concurrency, device=spec.device),
            model_dir,
            further_speculator_dirs=folders.values(),
            num_engines=len(folders) + 2,
        )
        model = load_model(model_dir, device=spec.device)
        drafters = {
            PLAIN: NoDrafter(),
            SUFFIX: load_drafter(SUFFIX, model, None),
            **{name: load_drafter(name, model, folder, model_dir=model_dir) for name, folder in folders.items()},
        }
    engines = {name: Engine(model, drafter, config) for name, drafter in drafters.items()}
    for engine in engines.values():
        use_adapter(engine, spec.adapter_dir)
    conversations = _measured(spec, parameters, max_tokens=engines[PLAIN].max_seq_len)
    return tokens_per_second(engines, conversations, concurrency=parameters.measured_concurrency)


def _return_memory() -> None:
    """Returns the memory of the training to the device, for the engines."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _measured(spec: TrainingSpec, parameters: AutoHyperparameters, *, max_tokens: int) -> tuple[Conversation, ...]:
    """Returns conversations that no candidate was trained on, and that fit an engine's cache of `max_tokens`.

    Raises: InvalidInputError: none of them fits.
    """
    corpus = read_corpus(
        [Path(path) for path in spec.tokens_paths],
        validation_fraction=parameters.loop.validation_fraction,
        drop_cut_answers=spec.drop_cut_answers,
    )
    fitting = tuple(each for each in corpus.validation if each.num_tokens <= max_tokens)
    if not fitting:
        message = f"no held-out answer fits the engines' context of {max_tokens} tokens, so no speed can be measured"
        raise InvalidInputError("context_length_exceeded", message)
    return fitting[: parameters.measured_answers]


def _finished(
    spec: TrainingSpec,
    trained: Mapping[str, _Trained],
    speeds: Mapping[str, float],
    failures: Mapping[str, Exception],
) -> Finished:
    best = max(trained, key=lambda kind: speeds[_drafter(spec, kind)])
    candidates = [
        {
            "kind": kind,
            "acceptance_length": each.result["acceptance_length"],
            "steps": each.result["steps"],
            "elapsed_seconds": each.result["elapsed_seconds"],
            "tokens_per_second": round(speeds[_drafter(spec, kind)], 2),
        }
        for kind, each in trained.items()
    ]
    auto = {
        "candidates": candidates,
        "failed": [{"kind": kind, "error": str(error) or type(error).__name__} for kind, error in failures.items()],
        "plain_tokens_per_second": round(speeds[PLAIN], 2),
        "suffix_tokens_per_second": round(speeds[SUFFIX], 2),
        "with_suffix_decoding": spec.with_suffix_decoding,
    }
    return Finished(result={**trained[best].result, "auto": auto}, artifacts={"speculator": str(trained[best].folder)})
