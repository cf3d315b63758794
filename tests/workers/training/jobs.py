"""Helpers for tests of training jobs: answers of a tiny model, and the spec of a job that trains on these answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.generate import generate
from engine.load import load_engine
from engine.request import Request
from tests.workers.support import token_rows, write_lines
from workers.contracts import TrainingSpec


def write_answers(path: Path, model: Path, requests: Sequence[Request]) -> Path:
    """Writes answers of the model in the format of a batch job.

    Each answer is written twice, with different ids. The model has random weights, so its answers have few common
    patterns. Training improves the validation only because the training part has copies of the validation answers.
    """
    answers = generate(load_engine(model), requests)
    rows = [
        row | {"prompt_token_ids": list(request.prompt_token_ids), "finish_reason": str(answer.finish_reason)}
        for row, request, answer in zip(token_rows([a.token_ids for a in answers]), requests, answers, strict=True)
    ]
    return write_lines(path, [row | {"custom_id": f"{row['custom_id']}-{copy}"} for copy in range(2) for row in rows])


def training_spec(
    folder: Path,
    model: Path,
    tokens: Path,
    method: str,
    hyperparameters: Mapping[str, Any],
    *,
    adapter_dir: str | None = None,
) -> TrainingSpec:
    return TrainingSpec(
        job_id="job_0123",
        model_dir=str(model),
        target_revision="f00d",
        method=method,
        tokens_paths=(str(tokens),),
        output_dir=str(folder / "output"),
        checkpoint_dir=str(folder / "checkpoint"),
        hyperparameters=dict(hyperparameters),
        adapter_dir=adapter_dir,
    )
