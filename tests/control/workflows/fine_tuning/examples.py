"""Example objects and request bodies of fine tuning, for the tests that cover all routes."""

import tempfile
from pathlib import Path

from django.db import transaction

from control.core.storage.backends import get_storage
from control.queue.jobs.checkpoints import checkpoint_folder
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.services import job_submit
from control.queue.jobs.state import event_add
from control.workflows.fine_tuning.models import FineTuningJob
from tests.control.models.adapters.support import write_adapter
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def fine_tuning_job(world: World) -> FineTuningJob:
    """A job that trains an adapter and has committed one checkpoint."""
    job = job_submit(organization=world.organization, kind=Job.Kind.TRAINING, params={"method": "lora"})
    folder = checkpoint_folder(job.pk, step=10, fence=1)
    with tempfile.TemporaryDirectory() as local:
        get_storage().put_folder(folder, write_adapter(Path(local) / "checkpoint"))
    with transaction.atomic():
        data = {"fence": 1, "step": 10, "metrics": {"loss": 1.5, "validation_loss": 1.75}}
        event_add(job_id=job.pk, type="checkpoint_committed", data=data)
    return FineTuningJob.objects.create(
        organization=world.organization,
        job=job,
        base_model=world.base_model,
        training_file=world.file,
        name=f"ft:model::{world.tag}",
    )


def checkpoint_id(world: World) -> str:
    checkpoint = JobEvent.objects.get(job=world.fine_tuning_job.job_id, type="checkpoint_committed")
    return f"ftckpt_{checkpoint.pk}"


IDS: Ids = {
    "fine_tuning_job_id": lambda world: world.fine_tuning_job.pk,
    "fine_tuning_checkpoint_id": checkpoint_id,
}
BODIES: Bodies = {
    "POST /v1/fine_tuning/jobs": Body(
        lambda world: {"model": world.base_model.name, "training_file": world.file.pk},
        references={"model": "name", "training_file": "file_id", "validation_file": "file_id"},
    ),
    "POST /v1/fine_tuning/jobs/{job_id}/cancel": NO_BODY,
    "POST /v1/fine_tuning/jobs/{job_id}/pause": NO_BODY,
    "POST /v1/fine_tuning/jobs/{job_id}/resume": NO_BODY,
    "POST /v1/fine_tuning/jobs/{job_id}/checkpoints/{checkpoint_id}/adapter": Body(lambda world: {"name": "tone"}),
}
