"""Runs a training job. It reads the token ids of prompts and their answers, and writes a speculator's artifact:

token files ─▶ corpus ─▶ hidden states of the target, computed once ─▶ loop ─▶ best weights ─▶ artifact
"""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.drafters.eagle3_config import default_taps
from engine.drafters.eagle3_module import Eagle3
from engine.errors import SpeculatorNotLoadable
from engine.fingerprint import fingerprint_of
from engine.load import load_model
from engine.lora.adapted_model import AdaptedModel
from engine.models.base import Model
from workers.contracts import Finished, TrainingSpec
from workers.emitter import Emit
from workers.failures import UserConfigError
from workers.hyperparameters.fields import HyperparameterError
from workers.hyperparameters.kinds import Hyperparameters, as_values, read_hyperparameters
from workers.inference.loading import loading_failures, read_adapter
from workers.kinds import OUTPUT_CHANGING_KINDS, TRAINED_KINDS
from workers.training.artifact import training_report, write_artifact
from workers.training.data import read_corpus
from workers.training.kept_states import KeptStates
from workers.training.loop import train
from workers.training.methods import SpeculatorMethod, make_method
from workers.training.preparation import Preparation
from workers.training.processes import ALONE, Processes
from workers.training.tracking import TrackedRun, configured_trackers, tracked


def run_training(
    spec: TrainingSpec,
    emit: Emit,
    processes: Processes = ALONE,
    *,
    kept: KeptStates | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Finished:
    """Trains a speculator. Only the process of rank 0 writes the artifact; other processes return an empty `Finished`.

    clock: returns seconds. The hyperparameter `max_seconds` limits the training time that this clock measures.
    """
    parameters = _read_parameters(spec)
    loop = parameters.loop
    corpus = read_corpus(
        [Path(p) for p in spec.tokens_paths],
        validation_fraction=loop.validation_fraction,
        drop_cut_answers=spec.drop_cut_answers,
    )
    with loading_failures():
        target = load_target(spec)
    output_dir = Path(spec.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    preparation = Preparation(
        model_dir=Path(spec.model_dir),
        target=target,
        corpus=corpus,
        # The cache is not in output_dir, because that folder is uploaded.
        cache=output_dir.with_name(f"{output_dir.name}.cache.{processes.rank}"),
        seed=spec.seed,
        emit=emit if processes.is_first else lambda event: None,
        processes=processes,
        initial=Path(spec.initial_speculator_dir) if spec.initial_speculator_dir else None,
        kept=kept,
    )
    try:
        return _train(spec, parameters, preparation, processes, clock)
    finally:
        shutil.rmtree(preparation.cache, ignore_errors=True)


def load_target(spec: TrainingSpec) -> Model:
    """Loads the model, with its adapter if the spec names one."""
    model = load_model(Path(spec.model_dir), device=spec.device)
    if spec.adapter_dir is None:
        return model
    if spec.method in OUTPUT_CHANGING_KINDS:
        raise UserConfigError("adapter_not_usable", f"a {spec.method} trains an adapter of its own")
    return AdaptedModel(model, read_adapter(model, spec.adapter_dir))


def _fingerprint(preparation: Preparation) -> str:
    """Returns the `system_fingerprint` of the target's answers."""
    target = preparation.target
    if not isinstance(target, AdaptedModel):
        return str(fingerprint_of(preparation.model_dir, target))
    return str(fingerprint_of(preparation.model_dir, target.base).with_adapter(target.adapter.sha256))


def _read_parameters(spec: TrainingSpec) -> Hyperparameters:
    if spec.method not in TRAINED_KINDS:
        message = f"method must be one of {', '.join(TRAINED_KINDS)}, got {spec.method!r}"
        raise UserConfigError("unknown_method", message)
    try:
        return read_hyperparameters(spec.method, spec.hyperparameters)
    except HyperparameterError as error:
        raise UserConfigError("invalid_hyperparameters", str(error)) from error


def _own_taps(method: SpeculatorMethod, *, target: Model) -> tuple[int, ...]:
    """Returns the taps of an EAGLE-3 drafter; () if they are the default taps, which earlier releases trained."""
    if not isinstance(method.module, Eagle3):
        return ()
    num_layers = target.config.num_layers
    taps = method.module.config.taps_of(num_layers)
    return () if taps == default_taps(num_layers) else taps


def _train(
    spec: TrainingSpec,
    parameters: Hyperparameters,
    preparation: Preparation,
    processes: Processes,
    clock: Callable[[], float],
) -> Finished:
    try:
        method = make_method(spec.method, parameters, preparation)
    except SpeculatorNotLoadable as error:
        raise UserConfigError("speculator_not_loadable", str(error)) from error
    output_dir = Path(spec.output_dir)
    command = {"method": spec.method, "seed": spec.seed, **as_values(parameters)}
    run = TrackedRun(name=spec.job_id, folder=output_dir, parameters=command)
    with tracked(preparation.emit, run, configured_trackers() if processes.is_first else ()) as emit:
        outcome = train(
            method,
            parameters.loop,
            seed=spec.seed,
            checkpoint_dir=Path(spec.checkpoint_dir),
            emit=emit,
            processes=processes,
            clock=clock,
            taps=_own_taps(method, target=preparation.target),
        )
    if not processes.is_first:
        return Finished(result={}, artifacts={})
    report = training_report(
        spec,
        outcome,
        preparation,
        draft_vocab_size=method.draft_vocab_size,
        cached_bytes=method.cached_bytes,
    )
    folder = output_dir / "speculator"
    save = partial(method.save, base_model=spec.target_revision)
    write_artifact(
        folder,
        save,
        spec=spec,
        parameters=parameters,
        corpus=preparation.corpus,
        report=report,
        fingerprint=_fingerprint(preparation),
    )
    return Finished(
        result={key: value for key, value in report.items() if key not in ("history", "validation_ids")},
        artifacts={"speculator": str(folder)},
    )
