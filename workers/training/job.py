"""A training job: rows of answers in, a speculator's folder out.

tokens ─ corpus ─ hidden states of the target, once ─ loop ─ best weights ─ folder
                                                               config.json  weights  provenance.json  report.json
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.load import load_model
from engine.model import Decoder
from workers.contracts import Finished, Progress, TrainingSpec
from workers.emitter import Emit
from workers.failures import UserConfigError
from workers.jobs.loading import loading_failures
from workers.training.checkpoint import sync
from workers.training.data import Conversation, Corpus, most_frequent_tokens, read_corpus, token_counts
from workers.training.hidden_states import HiddenRows, compute_hidden_rows, rows_bytes
from workers.training.loop import LoopConfig, Outcome, train
from workers.training.medusa.config import MedusaHyperparameters
from workers.training.medusa.method import MedusaMethod
from workers.training.provenance import provenance

METHODS = ("medusa",)
_CACHE_FILE = "hidden_states.bin"


def run_training(spec: TrainingSpec, emit: Emit) -> Finished:
    if spec.method not in METHODS:
        raise UserConfigError("unknown_method", f"method must be one of {', '.join(METHODS)}, got {spec.method!r}")
    parameters = MedusaHyperparameters.from_values(spec.hyperparameters)
    corpus = read_corpus([Path(p) for p in spec.tokens_paths], validation_fraction=parameters.validation_fraction)
    with loading_failures():
        decoder = load_model(Path(spec.model_dir), device=spec.device)
    output_dir = Path(spec.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    cache = _cache_folder(output_dir, corpus, decoder, parameters)
    try:
        return _train_medusa(spec, parameters, corpus, decoder, cache, emit)
    finally:
        if cache is not None:
            shutil.rmtree(cache, ignore_errors=True)


def _cache_folder(output_dir: Path, corpus: Corpus, decoder: Decoder, parameters: MedusaHyperparameters) -> Path | None:
    """Beside the output, not in it; None where the hidden states fit into memory."""
    conversations = (*corpus.train, *corpus.validation)
    needed = rows_bytes(conversations, hidden_size=decoder.config.hidden_size, dtype=decoder.dtype)
    if needed <= parameters.cache_memory_bytes or decoder.device.type != "cpu":
        return None
    return output_dir.with_name(f"{output_dir.name}.cache")


def _train_medusa(
    spec: TrainingSpec,
    parameters: MedusaHyperparameters,
    corpus: Corpus,
    decoder: Decoder,
    cache: Path | None,
    emit: Emit,
) -> Finished:
    draft_vocab = _draft_vocab(corpus, decoder, parameters.draft_vocab_size)
    train_rows, validation_rows = _hidden_rows(corpus, decoder, cache, emit)
    method = MedusaMethod(decoder, parameters, draft_vocab=draft_vocab, train=train_rows, validation=validation_rows)
    outcome = train(method, _loop_config(parameters, spec.seed), checkpoint_dir=Path(spec.checkpoint_dir), emit=emit)
    report = _report(spec, outcome, corpus, draft_vocab, train_rows.num_bytes + validation_rows.num_bytes, cache)
    folder = Path(spec.output_dir) / "speculator"
    _write_artifact(folder, method, spec, parameters, corpus, report)
    return Finished(
        result={key: value for key, value in report.items() if key != "history"},
        artifacts={"speculator": str(folder)},
    )


def _draft_vocab(corpus: Corpus, decoder: Decoder, size: int) -> Tensor:
    """Counted on training answers alone: validation must judge an unseen vocabulary too."""
    vocab_size = decoder.config.vocab_size
    counts = token_counts(corpus.train, vocab_size=vocab_size)
    return most_frequent_tokens(counts, size=min(size, vocab_size), always=sorted(decoder.config.eos_token_ids))


def _hidden_rows(corpus: Corpus, decoder: Decoder, cache: Path | None, emit: Emit) -> tuple[HiddenRows, HiddenRows]:
    total = len(corpus.train) + len(corpus.validation)

    def rows(conversations: tuple[Conversation, ...], name: str, before: int) -> HiddenRows:
        return compute_hidden_rows(
            decoder,
            conversations,
            file=cache / f"{name}_{_CACHE_FILE}" if cache is not None else None,
            on_done=lambda done: emit(Progress(done=before + done, total=total, unit="hidden states")),
        )

    return rows(corpus.train, "train", 0), rows(corpus.validation, "validation", len(corpus.train))


def _loop_config(parameters: MedusaHyperparameters, seed: int) -> LoopConfig:
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


def _report(
    spec: TrainingSpec, outcome: Outcome, corpus: Corpus, draft_vocab: Tensor, cache_bytes: int, cache: Path | None
) -> dict[str, Any]:
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
        "draft_vocab_size": draft_vocab.shape[0],
        "hidden_states": {"kept_in": "memory" if cache is None else "file", "bytes": cache_bytes},
        "history": list(progression.history),
    }


def _write_artifact(
    folder: Path,
    method: MedusaMethod,
    spec: TrainingSpec,
    parameters: MedusaHyperparameters,
    corpus: Corpus,
    report: dict[str, Any],
) -> None:
    """Effects: the folder is there whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    for old in (partial, folder):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir(parents=True)
    method.heads.save(partial, base_model=spec.target_revision)
    command = {"method": spec.method, "seed": spec.seed, "hyperparameters": asdict(parameters)}
    made_from = provenance(target_revision=spec.target_revision, data_sha256=corpus.sha256, command=command)
    (partial / "provenance.json").write_text(json.dumps(made_from, indent=2) + "\n")
    (partial / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    for path in partial.iterdir():
        sync(path)
    sync(partial)
    partial.rename(folder)
    sync(folder.parent)
