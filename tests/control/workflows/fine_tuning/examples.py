"""Example objects and request bodies for the tests that cover all routes: fine tuning."""

from control.workflows.fine_tuning.models import FineTuningJob
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def fine_tuning_job(world: World) -> FineTuningJob:
    return FineTuningJob.objects.create(
        organization=world.organization, pipeline=world.pipeline, training_file=world.file
    )


IDS: Ids = {
    "fine_tuning_job_id": lambda world: world.fine_tuning_job.pk,
}
BODIES: Bodies = {
    "POST /v1/fine_tuning/jobs": Body(
        lambda world: {"model": world.base_model.name, "training_file": world.file.pk},
        references={"model": "name", "training_file": "file_id", "validation_file": "file_id"},
    ),
    "POST /v1/fine_tuning/jobs/{job_id}/cancel": NO_BODY,
    "POST /v1/fine_tuning/jobs/{job_id}/pause": NO_BODY,
    "POST /v1/fine_tuning/jobs/{job_id}/resume": NO_BODY,
}
