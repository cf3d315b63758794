"""A pipeline's options for cut answers reach the specs of the worker's child processes."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from control.core.storage.backends import get_storage
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_claim
from control.workflows.batches.models import Batch
from tests.control.workflows.pipelines.helpers import end_batch, make_pipeline
from workers.contracts import BatchSpec, Spec, TrainingSpec
from workers.supervisor import batch, training
from workers.supervisor.attempt import Attempt
from workers.supervisor.lease import Lease


class _Started(Exception):
    """Raised when the handler starts its child process."""


def spec_of(job: Job | None, module: Any, handler: Any, folder: Path, visible_devices: str | None = None) -> Spec:
    """Runs the handler until it starts its child process. Returns the spec of the child."""
    assert job is not None
    claim = job_claim(job_id=job.pk, worker="worker")
    assert claim is not None
    job = Job.objects.select_related("organization").get(pk=job.pk)
    folder.mkdir()
    attempt = Attempt(
        claim=replace(claim, visible_devices=visible_devices),
        job=job,
        lease=Lease(claim),
        folder=folder,
        log_path=folder / "log",
        stop=threading.Event(),
    )
    with (
        patch.object(module, "model_dir", return_value=str(folder)),
        patch.object(module, "run_child", side_effect=_Started) as run_child,
        pytest.raises(_Started),
    ):
        handler.run(attempt)
    spec: Spec = run_child.call_args.args[1]
    return spec


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, (False, None, False)),
        ({"on_truncation": "keep"}, (False, None, False)),
        ({"on_truncation": "drop"}, (False, None, True)),
        ({"on_truncation": "continue"}, (True, None, False)),
        ({"on_truncation": "continue", "max_continued_tokens": 64}, (True, 64, False)),
    ],
)
def test_the_options_for_cut_answers_reach_the_child_processes(
    db: None, tmp_path: Path, options: dict[str, Any] | None, expected: tuple[bool, int | None, bool]
) -> None:
    pipeline = make_pipeline(deploy=False, distillation=options)
    assert pipeline.batch is not None

    distilling = spec_of(pipeline.batch.job, batch, batch.BatchHandler(), tmp_path / "batch")
    (tmp_path / "tokens.jsonl").write_text("")
    get_storage().put_file("tokens.jsonl", tmp_path / "tokens.jsonl")
    pipeline = end_batch(pipeline, Batch.Status.COMPLETED)
    trained = spec_of(pipeline.training_job, training, training.TrainingHandler(), tmp_path / "training")

    assert isinstance(distilling, BatchSpec)
    assert isinstance(trained, TrainingSpec)
    found = (distilling.continue_cut_answers, distilling.max_continued_tokens, trained.drop_cut_answers)
    assert found == expected
