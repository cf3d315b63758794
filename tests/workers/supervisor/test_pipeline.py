"""A whole pipeline with a real worker, and training that resumes after a kill."""

import json
from pathlib import PurePath

from control.core.storage.backends import get_storage
from control.models.catalog.models import BaseModel
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.selectors import pipeline_fresh
from control.workflows.pipelines.state import ACTIVE
from control.workflows.speculators.answer_examples import answer_examples
from tests.control.workflows.pipelines.helpers import make_pipeline
from tests.workers.supervisor.live import LiveStack, kill_9, read_object


def wait_for_status(stack: LiveStack, pipeline: Pipeline, status: str) -> Pipeline:
    def has_status() -> bool:
        now = pipeline_fresh(pipeline)
        assert now.status in (*ACTIVE, status), f"{now.status} instead of {status}: {now.error}"
        return now.status == status

    stack.wait_until(has_status, 120)
    return pipeline_fresh(pipeline)


def test_a_worker_runs_a_pipeline_from_prompts_to_an_endpoint(stack: LiveStack) -> None:
    pipeline = make_pipeline(stack.organization, base_model=stack.base_model)
    stack.start_worker()

    wait_for_status(stack, pipeline, "deploying")
    # The deployment is created after the change of the status.
    stack.wait_until(lambda: pipeline_fresh(pipeline).deployment is not None, 20)
    pipeline = pipeline_fresh(pipeline)

    assert pipeline.speculator is not None
    assert pipeline.speculator.report["prompts_held_out"] == 2
    assert read_object(pipeline.speculator.plot_key) == b"\x89PNG"
    (example,) = answer_examples(pipeline.speculator)
    assert (example.custom_id, example.parts[1].accepted) == ("row-1", True)
    (evaluation,) = pipeline.speculator.evaluations.all()
    assert evaluation.certificate is not None
    assert evaluation.certificate["statement"]["counts"]["equal"] == 2
    assert evaluation.job.params["training_seconds"] > 0
    assert evaluation.job.checkpoint_key
    assert pipeline.training_job is not None
    assert pipeline.training_job.metrics == {"loss": 0.25}  # the metrics of the last of four steps
    # Of the objects that the jobs have stored, only the results remain.
    stack.wait_until(lambda: not Job.objects.filter(finished_at__isnull=False, has_stored_work=True).exists(), 20)
    kept = {PurePath(name).parts[1].partition(".")[0] for name in get_storage().sizes("jobs")}
    assert kept == {"speculator", "evaluation"}
    Deployment.objects.filter(pk=pipeline.deployment_id).update(state=Deployment.State.READY)
    wait_for_status(stack, pipeline, "live")


def test_a_pipeline_fails_with_model_changed_if_the_evaluated_weights_have_another_revision(stack: LiveStack) -> None:
    # The evidence of the fake child always has the same revision, which differs from this one.
    BaseModel.objects.filter(pk=stack.base_model.pk).update(revision="9" * 64)
    stack.base_model.refresh_from_db()
    pipeline = make_pipeline(stack.organization, base_model=stack.base_model)
    stack.start_worker()

    pipeline = wait_for_status(stack, pipeline, "failed")

    assert pipeline.error is not None
    assert pipeline.error["code"] == "model_changed"


def test_training_resumes_from_the_last_checkpoint_after_a_kill(stack: LiveStack) -> None:
    pipeline = make_pipeline(stack.organization, base_model=stack.base_model, deploy=False)
    worker = stack.start_worker(child="--row-seconds 0.3")
    stack.wait_until(lambda: Job.objects.filter(kind="training").exclude(checkpoint_key="").exists(), 40)
    kill_9(worker)
    stack.start_worker()

    pipeline = wait_for_status(stack, pipeline, "succeeded")

    assert pipeline.speculator is not None
    assert pipeline.training_job is not None
    config = json.loads(read_object(f"{pipeline.speculator.storage_prefix}/config.json"))
    assert config["first_step"] == pipeline.training_job.result["resumed_from"] >= 1
    assert pipeline.training_job.attempt == 2
