"""Creates pipelines and advances them as workers and the supervisor of deployments do."""

from typing import Any

from django.utils import timezone

from control.core.api.requests import parse_request
from control.models.catalog.models import BaseModel, Speculator
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.workflows.batches.models import Batch
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.requests import create_from
from control.workflows.pipelines.schemas import PipelineRequest
from control.workflows.pipelines.stages import pipeline_advance
from tests.control.factories import chat_row, make_base_model, make_file, make_organization

REPORT = {"prompts_held_out": 2, "outputs_equal": 2, "acceptance_length": 2.0, "speedup": 1.5}


def make_pipeline(
    organization: Organization | None = None, *, base_model: BaseModel | None = None, num_rows: int = 20, **body: Any
) -> Pipeline:
    organization = organization or make_organization()
    base_model = base_model or make_base_model()
    rows = [chat_row(f"row-{number}", content=f"prompt {number}") for number in range(num_rows)]
    request = {"name": "fast", "model": base_model.name, "prompts_file": make_file(organization, rows).pk, **body}
    return create_from(organization, parse_request(PipelineRequest, request))


def end_batch(pipeline: Pipeline, status: str = Batch.Status.COMPLETED, **values: Any) -> Pipeline:
    """Ends the batch, as a worker does."""
    values = {"tokens_key": "tokens.jsonl", **values}
    Batch.objects.filter(pk=pipeline.batch_id).update(status=status, **values)
    return pipeline_advance(pipeline=pipeline)


def end_job(pipeline: Pipeline, job: Job | None, status: str = Job.Status.SUCCEEDED, **values: Any) -> Pipeline:
    assert job is not None
    Job.objects.filter(pk=job.pk).update(status=status, finished_at=timezone.now(), **values)
    return pipeline_advance(pipeline=pipeline)


def end_training(pipeline: Pipeline) -> Pipeline:
    Speculator.objects.filter(pk=pipeline.speculator_id).update(status=Speculator.Status.READY, storage_prefix="s")
    return end_job(pipeline, pipeline.training_job)


def end_evaluation(pipeline: Pipeline, **report: Any) -> Pipeline:
    return end_job(pipeline, pipeline.evaluation_job, result={**REPORT, **report})


def set_deployment_state(pipeline: Pipeline, state: str, **values: Any) -> Pipeline:
    """Sets the deployment's state, as the supervisor of deployments does."""
    Deployment.objects.filter(pk=pipeline.deployment_id).update(state=state, **values)
    return pipeline_advance(pipeline=pipeline)


def advance_to_stage(stage: str, pipeline: Pipeline) -> Pipeline:
    """Completes the stages of a new pipeline that come before `stage`, so that `stage` has started."""
    steps = {"train": end_batch, "evaluate": end_training, "deploy": end_evaluation}
    for name, step in steps.items():
        if stage == "distil":
            break
        pipeline = step(pipeline)
        if name == stage:
            break
    return pipeline
