"""Pausing with real workers: training stops within seconds, and ends with the same result after it resumes."""

import json

from control.queue.jobs.models import Job
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.fine_tuning.services import fine_tuning_job_pause, fine_tuning_job_resume
from tests.control.factories import make_file
from tests.control.workflows.pipelines.helpers import make_pipeline
from tests.workers.supervisor.live import LiveStack, children_of, read_object
from tests.workers.supervisor.test_pipeline import wait_for_status

MAX_SECONDS_TO_STOP = 10.0


def test_paused_training_stops_within_seconds_and_resumes_from_its_checkpoint(stack: LiveStack) -> None:
    pipeline = make_pipeline(stack.organization, base_model=stack.base_model, deploy=False)
    rows = make_file(stack.organization, [{}])
    job = FineTuningJob.objects.create(organization=stack.organization, pipeline=pipeline, training_file=rows)
    stack.start_worker(child="--row-seconds 0.5")
    training = Job.objects.filter(kind="training")
    stack.wait_until(lambda: training.exclude(checkpoint_key="").exists(), 60)

    fine_tuning_job_pause(job=job)

    stack.wait_until(lambda: children_of(stack.data_dir) == [], MAX_SECONDS_TO_STOP)
    checkpoint_key = training.get().checkpoint_key  # the last part of the key has the step
    assert training.get().status == Job.Status.PAUSED
    fine_tuning_job_resume(job=job)

    pipeline = wait_for_status(stack, pipeline, "succeeded")
    assert pipeline.speculator is not None
    assert pipeline.training_job is not None
    config = json.loads(read_object(f"{pipeline.speculator.storage_prefix}/config.json"))
    assert config["first_step"] == pipeline.training_job.result["resumed_from"]
    assert config["first_step"] == int(checkpoint_key.rpartition("/")[2].partition(".")[0])
    assert pipeline.training_job.attempt == 2
