"""Writes the artifact of a training job: a folder with the trained speculator and a description of its training.

The folder has config.json, the weights, report.json, plots/ and tensorboard/. provenance.json lists all these files
with their hashes, and records the command, the versions and the hash of the training data.
"""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.target_texts import target_texts
from workers.contracts import TrainingSpec
from workers.hyperparameters.kinds import Hyperparameters, as_values
from workers.training.checkpoint import whole_folder
from workers.training.data import Corpus
from workers.training.loop import Outcome, Validation
from workers.training.plots import write_plots
from workers.training.preparation import Preparation
from workers.training.provenance import provenance
from workers.training.tracking import FOLDERS

PLOTS = "plots"

logger = logging.getLogger(__name__)


def training_report(
    spec: TrainingSpec,
    outcome: Outcome[Validation],
    preparation: Preparation,
    *,
    draft_vocab_size: int,
    cached_bytes: int,
) -> dict[str, Any]:
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
        "answers_cut_in_trace": corpus.num_cut_in_trace,
        "answers_dropped": corpus.num_dropped,
        "answer_tokens": sum(len(c.completion_token_ids) for c in corpus.train),
        "validation_ids": [c.custom_id for c in corpus.validation],
        "draft_vocab_size": draft_vocab_size,
        "hidden_states": {"kept_in": "file" if preparation.cache.is_dir() else "memory", "bytes": cached_bytes},
        "history": list(progression.history),
    }


def write_artifact(
    folder: Path,
    save: Callable[[Path], None],
    *,
    spec: TrainingSpec,
    parameters: Hyperparameters,
    corpus: Corpus,
    report: dict[str, Any],
    fingerprint: str,
) -> None:
    """Writes the artifact to `folder`.

    Args:
        fingerprint: `system_fingerprint` of the target for which the speculator was trained.
        save: writes the speculator's config and weights into the given folder.

    Effects: the folder is written completely or not at all; an older artifact there is replaced.
    """
    with whole_folder(folder) as partial:
        save(partial)
        (partial / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        write_plots(report, partial / PLOTS)
        _copy_curves(folder.parent, partial)
        command = {"method": spec.method, "seed": spec.seed, "hyperparameters": as_values(parameters)}
        origin = provenance(
            target_revision=spec.target_revision,
            target_texts=target_texts(Path(spec.model_dir)),
            system_fingerprint=fingerprint,
            data_sha256=corpus.sha256,
            initial=Path(spec.initial_speculator_dir) if spec.initial_speculator_dir else None,
            command=command,
            folder=partial,
        )
        (partial / "provenance.json").write_text(json.dumps(origin, indent=2) + "\n")


def _copy_curves(source: Path, folder: Path) -> None:
    """Copies the trackers' folders. A folder that cannot be copied, because a tracker still changes it, is left out."""
    for name in FOLDERS:
        if not (source / name).is_dir():
            continue
        try:
            shutil.copytree(source / name, folder / name, ignore_dangling_symlinks=True)
        except (OSError, shutil.Error):
            logger.exception("the files of %s are not in the artifact", name)
            shutil.rmtree(folder / name, ignore_errors=True)
