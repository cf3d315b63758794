"""A training job: rows of answers in, a speculator's folder out.

tokens ─ corpus ─ hidden states of the target, once ─ loop ─ best weights ─ folder
                                                               config.json  weights  provenance.json  report.json
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.load import load_model
from workers.contracts import Finished, TrainingSpec
from workers.emitter import Emit
from workers.failures import UserConfigError
from workers.jobs.loading import loading_failures
from workers.training.block.config import BlockHyperparameters
from workers.training.block.method import BlockMethod
from workers.training.checkpoint import sync
from workers.training.data import Corpus, read_corpus
from workers.training.eagle3.config import Eagle3Hyperparameters
from workers.training.eagle3.method import Eagle3Method
from workers.training.loop import LoopConfig, Outcome, train
from workers.training.medusa.config import MedusaHyperparameters
from workers.training.medusa.method import MedusaMethod
from workers.training.preparation import Preparation
from workers.training.provenance import provenance

METHODS = ("medusa", "eagle3", "block")

_Parameters = MedusaHyperparameters | Eagle3Hyperparameters | BlockHyperparameters
_Method = MedusaMethod | Eagle3Method | BlockMethod


def run_training(spec: TrainingSpec, emit: Emit) -> Finished:
    if spec.method not in METHODS:
        raise UserConfigError("unknown_method", f"method must be one of {', '.join(METHODS)}, got {spec.method!r}")
    parameters = _read_parameters(spec)
    corpus = read_corpus([Path(p) for p in spec.tokens_paths], validation_fraction=parameters.validation_fraction)
    with loading_failures():
        target = load_model(Path(spec.model_dir), device=spec.device)
    output_dir = Path(spec.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    preparation = Preparation(
        model_dir=Path(spec.model_dir),
        target=target,
        corpus=corpus,
        cache=output_dir.with_name(f"{output_dir.name}.cache"),  # beside the output, not in it
        seed=spec.seed,
        emit=emit,
    )
    try:
        return _train(spec, parameters, preparation)
    finally:
        shutil.rmtree(preparation.cache, ignore_errors=True)


def _read_parameters(spec: TrainingSpec) -> _Parameters:
    if spec.method == "eagle3":
        return Eagle3Hyperparameters.from_values(spec.hyperparameters)
    if spec.method == "block":
        return BlockHyperparameters.from_values(spec.hyperparameters)
    return MedusaHyperparameters.from_values(spec.hyperparameters)


def _make_method(parameters: _Parameters, preparation: Preparation) -> _Method:
    if isinstance(parameters, Eagle3Hyperparameters):
        return Eagle3Method.prepare(preparation, parameters)
    if isinstance(parameters, BlockHyperparameters):
        return BlockMethod.prepare(preparation, parameters)
    return MedusaMethod.prepare(preparation, parameters)


def _train(spec: TrainingSpec, parameters: _Parameters, preparation: Preparation) -> Finished:
    method = _make_method(parameters, preparation)
    config = _loop_config(parameters, spec.seed)
    outcome = train(method, config, checkpoint_dir=Path(spec.checkpoint_dir), emit=preparation.emit)
    report = _report(spec, outcome, preparation, method)
    folder = Path(spec.output_dir) / "speculator"
    _write_artifact(folder, method, spec, parameters, preparation.corpus, report)
    return Finished(
        result={key: value for key, value in report.items() if key != "history"},
        artifacts={"speculator": str(folder)},
    )


def _loop_config(parameters: _Parameters, seed: int) -> LoopConfig:
    return LoopConfig(
        epochs=parameters.epochs,
        batch_rows=parameters.batch_rows,
        learning_rate=parameters.learning_rate,
        weight_decay=parameters.weight_decay,
        warmup_steps=parameters.warmup_steps,
        grad_clip=parameters.grad_clip,
        evaluate_every=parameters.evaluate_every,
        patience=parameters.patience,
        seed=seed,
        max_steps=parameters.max_steps,
        max_seconds=parameters.max_seconds,
    )


def _report(spec: TrainingSpec, outcome: Outcome, preparation: Preparation, method: _Method) -> dict[str, Any]:
    corpus = preparation.corpus
    progression, validation = outcome.progression, outcome.validation
    return {
        "method": spec.method,
        "acceptance_length": validation.acceptance_length,
        "acceptance_rate_per_position": list(validation.acceptance_rate_per_position),
        "accuracy_per_depth": list(validation.accuracy_per_depth),
        "validation_loss": validation.loss,
        "steps": progression.step,
        "best_step": progression.best_step,
        "stopped_by": progression.stopped,
        "elapsed_seconds": round(progression.elapsed_seconds, 1),
        "conversations_train": len(corpus.train),
        "conversations_validation": len(corpus.validation),
        "conversations_skipped": corpus.num_skipped,
        "answers_cut_by_length": corpus.num_cut_by_length,
        "draft_vocab_size": method.draft_vocab_size,
        "hidden_states": {"kept_in": "file" if preparation.cache.is_dir() else "memory", "bytes": method.cached_bytes},
        "history": list(progression.history),
    }


def _write_artifact(
    folder: Path,
    method: _Method,
    spec: TrainingSpec,
    parameters: _Parameters,
    corpus: Corpus,
    report: dict[str, Any],
) -> None:
    """Effects: the folder is there whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    for old in (partial, folder):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir(parents=True)
    method.save(partial, base_model=spec.target_revision)
    command = {"method": spec.method, "seed": spec.seed, "hyperparameters": asdict(parameters)}
    made_from = provenance(target_revision=spec.target_revision, data_sha256=corpus.sha256, command=command)
    (partial / "provenance.json").write_text(json.dumps(made_from, indent=2) + "\n")
    (partial / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    for path in partial.iterdir():
        sync(path)
    sync(partial)
    partial.rename(folder)
    sync(folder.parent)
