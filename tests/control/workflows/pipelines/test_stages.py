"""A pipeline advances through its stages, unless it fails, is rejected or is cancelled."""

from typing import Any

import pytest

from control.core.api.errors import ApiError
from control.core.storage.backends import get_storage
from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.workflows.batches.models import Batch
from control.workflows.pipelines import services
from control.workflows.pipelines.gate import gate_objections
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.schemas import Gate
from control.workflows.pipelines.selectors import pipeline_fresh
from control.workflows.pipelines.services import pipeline_cancel, pipeline_resume
from control.workflows.pipelines.stages import (
    _deploy,
    pipeline_advance,
    pipelines_advance_after_job,
    pipelines_reconcile,
)
from control.workflows.pipelines.state import Status, transition
from tests.control.factories import make_base_model, make_organization
from tests.control.serving.deployments.support import make_speculator
from tests.control.workflows.pipelines.helpers import (
    REPORT,
    advance_to_stage,
    end_batch,
    end_evaluation,
    end_job,
    end_training,
    make_pipeline,
    set_deployment_state,
)

pytestmark = pytest.mark.django_db

STAGES = ["distil", "train", "evaluate", "deploy"]


def current_job(pipeline: Pipeline) -> Job | None:
    batch_job = pipeline.batch.job if pipeline.batch is not None else None
    return {"distilling": batch_job, "training": pipeline.training_job, "evaluating": pipeline.evaluation_job}.get(
        pipeline.status
    )


def row_counts() -> tuple[int, ...]:
    return tuple(model.objects.count() for model in (Batch, Job, Speculator, Deployment))


def test_a_pipeline_passes_through_all_stages_until_its_endpoint_is_live() -> None:
    pipeline = make_pipeline(training={"kind": "medusa", "num_heads": 3, "seed": 5}, evaluation={"max_tokens": 64})
    assert pipeline.status == "distilling"
    pipeline = end_batch(pipeline)
    assert pipeline.status == "training"
    assert pipeline.training_job is not None
    assert pipeline.training_job.params == {
        "speculator_id": pipeline.speculator_id,
        "tokens_key": "tokens.jsonl",
        "method": "medusa",
        "seed": 5,
        "initial_speculator_id": None,
        "hyperparameters": {"num_heads": 3},
        "drop_cut_answers": False,
    }
    pipeline = end_training(pipeline)
    assert pipeline.status == "evaluating"
    assert pipeline.evaluation_job is not None
    params = pipeline.evaluation_job.params
    assert (params["drafter"], params["max_tokens"], params["concurrencies"]) == ("medusa+suffix", 64, [1])
    pipeline = end_evaluation(pipeline)
    assert pipeline.status == "deploying"
    assert pipeline.deployment is not None
    assert (pipeline.deployment.name, pipeline.deployment.speculator_id) == ("fast", pipeline.speculator_id)
    pipeline = set_deployment_state(pipeline, Deployment.State.READY)
    assert pipeline.status == "live"
    assert pipeline.finished_at is not None


@pytest.mark.parametrize("stage", STAGES)
def test_advancing_again_starts_no_stage_twice(stage: str) -> None:
    pipeline = advance_to_stage(stage, make_pipeline())
    before = row_counts()
    for _ in range(3):
        pipeline_advance(pipeline=pipeline)
        pipelines_reconcile()
    assert row_counts() == before
    assert pipeline_fresh(pipeline).status == pipeline.status


@pytest.mark.parametrize("stage", ["distil", "train", "evaluate"])
def test_a_stage_that_another_worker_has_started_is_not_started_again(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = advance_to_stage(stage, make_pipeline())
    before = row_counts()
    stale = pipeline_fresh(pipeline)  # the pipeline as a worker read it before another worker started the stage
    field = {"distil": "batch", "train": "training_job", "evaluate": "evaluation_job"}[stage]
    setattr(stale, field, None)
    monkeypatch.setattr("control.workflows.pipelines.stages.pipeline_fresh", lambda _: stale)

    pipeline_advance(pipeline=stale)

    assert row_counts() == before
    assert getattr(pipeline_fresh(pipeline), field) == getattr(pipeline, field)


def test_a_speculator_that_fails_the_gate_is_not_deployed() -> None:
    pipeline = advance_to_stage("evaluate", make_pipeline(gate={"min_speedup": 2.0}))
    pipeline = end_evaluation(pipeline, outputs_equal=1)
    assert pipeline.status == "rejected"
    assert pipeline.error is not None
    assert pipeline.error["code"] == "gate_rejected"
    assert "outputs_equal must be all 2 held-out prompts, got 1" in pipeline.error["message"]
    assert "speedup must be at least 2, got 1.500" in pipeline.error["message"]
    assert not Deployment.objects.exists()


INEXACT = {"exact": False, "exact_reason": "the product down gives a row other bits"}


def test_a_refusal_for_unequal_answers_says_that_the_machine_is_not_exact() -> None:
    pipeline = end_evaluation(advance_to_stage("evaluate", make_pipeline()), outputs_equal=1, **INEXACT)
    assert pipeline.error is not None
    expected = "got 1 (compared with the model); the machine is not exact: the product down gives a row other bits"
    assert expected in pipeline.error["message"]


def test_an_inexact_machine_passes_the_gate_only_if_equal_answers_were_measured() -> None:
    measured = {"prompts_held_out": 2, "outputs_equal": 2, "speedup": 1.5, "acceptance_length": 2.0}
    unmeasured = {**measured, "prompts_held_out": 0, "outputs_equal": 0}
    assert gate_objections(Gate(), {**measured, **INEXACT}) == []
    (objection,) = gate_objections(Gate(), {**unmeasured, **INEXACT})
    assert objection.startswith("outputs_equal was not measured on any held-out prompt; the machine is not exact")
    assert gate_objections(Gate(outputs_equal=False), {**unmeasured, **INEXACT}) == []


def test_without_deploy_a_pipeline_ends_after_the_gate() -> None:
    pipeline = end_evaluation(advance_to_stage("evaluate", make_pipeline(deploy=False)))
    assert pipeline.status == "succeeded"
    assert not Deployment.objects.exists()


def test_the_error_of_a_stage_becomes_the_error_of_the_pipeline() -> None:
    pipeline = advance_to_stage("train", make_pipeline())
    error = {"class": "user_config", "code": "unknown_hyperparameter", "message": "no such key"}
    pipeline = end_job(pipeline, pipeline.training_job, Job.Status.FAILED, error=error)
    assert (pipeline.status, pipeline.error) == (
        "failed",
        {"code": "unknown_hyperparameter", "message": "no such key"},
    )


def test_the_error_for_an_invalid_prompt_names_its_line() -> None:
    errors = [{"code": "invalid_json_line", "line": 7, "message": "not JSON", "param": None}]
    pipeline = end_batch(make_pipeline(), Batch.Status.FAILED, errors=errors)
    assert pipeline.error == {"code": "invalid_json_line", "message": "line 7: not JSON"}


def test_the_error_for_invalid_prompts_counts_all_errors_and_not_only_the_stored_ones() -> None:
    errors = [{"code": "invalid_json_line", "line": line, "message": "not JSON", "param": None} for line in (7, 8)]
    pipeline = end_batch(make_pipeline(), Batch.Status.FAILED, errors=errors, num_errors=5_000)
    assert "(5000 errors in all" in (pipeline.error or {})["message"]


def test_a_pipeline_fails_if_the_model_answers_no_prompt() -> None:
    pipeline = end_batch(make_pipeline(), tokens_key="")
    assert (pipeline.status, pipeline.error and pipeline.error["code"]) == ("failed", "no_answers")


def test_a_failed_endpoint_fails_the_pipeline_and_resuming_starts_the_endpoint_again() -> None:
    pipeline = advance_to_stage("deploy", make_pipeline())
    error = {"code": "crash_loop", "message": "5 crashes"}
    pipeline = set_deployment_state(pipeline, Deployment.State.FAILED, error=error)
    assert (pipeline.status, pipeline.error) == ("failed", error)
    deployment_id = pipeline.deployment_id
    pipeline = pipeline_resume(pipeline=pipeline)
    assert (pipeline.status, pipeline.error, pipeline.deployment_id) == ("deploying", None, deployment_id)
    assert set_deployment_state(pipeline, Deployment.State.READY).status == "live"


def test_a_pipeline_fails_if_another_deployment_has_taken_its_name() -> None:
    organization = make_organization()
    pipeline = advance_to_stage("evaluate", make_pipeline(organization))
    Deployment.objects.create(organization=organization, name="fast", base_model=pipeline.base_model)
    pipeline = end_evaluation(pipeline)
    assert pipeline.status == "failed"
    assert pipeline.error is not None
    assert "fast" in pipeline.error["message"]


@pytest.mark.parametrize("stage", ["distil", "train", "evaluate"])
def test_resuming_repeats_only_the_failed_stage(stage: str) -> None:
    pipeline = advance_to_stage(stage, make_pipeline())
    before, job = (pipeline.batch_id, pipeline.training_job_id), current_job(pipeline)
    if stage == "distil":
        failed = end_batch(pipeline, Batch.Status.FAILED)
    else:
        failed = end_job(pipeline, job, Job.Status.FAILED, error={"code": "c", "message": "m"})
    assert failed.status == "failed"

    resumed = pipeline_resume(pipeline=failed)

    assert (resumed.status, resumed.error, resumed.finished_at) == (pipeline.status, None, None)
    new_job = current_job(resumed)
    assert new_job is not None
    assert job is not None
    assert (new_job.pk != job.pk, new_job.status) == (True, Job.Status.QUEUED)
    num_completed = {"distil": 0, "train": 1, "evaluate": 2}[stage]  # stages before the failed one
    assert (resumed.batch_id, resumed.training_job_id)[:num_completed] == before[:num_completed]


@pytest.mark.parametrize("stage", ["distil", "train", "evaluate"])
def test_cancelling_stops_the_job_of_the_stage_and_the_pipeline_can_be_resumed(stage: str) -> None:
    pipeline = advance_to_stage(stage, make_pipeline())
    job = current_job(pipeline)
    assert job is not None

    cancelled = pipeline_cancel(pipeline=pipeline)

    job.refresh_from_db()
    assert cancelled.status == "cancelled"
    assert job.cancel_requested_at is not None
    assert pipeline_advance(pipeline=cancelled).status == "cancelled"
    assert pipeline_resume(pipeline=cancelled).status == pipeline.status


@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_a_stage_that_starts_while_its_pipeline_is_cancelled_is_stopped_too(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = advance_to_stage(stage, make_pipeline())
    job = current_job(pipeline)
    assert job is not None
    field = {"train": "training_job", "evaluate": "evaluation_job"}[stage]
    Pipeline.objects.filter(pk=pipeline.pk).update(**{field: None})  # as if a worker were about to start the stage

    def start_stage_first(*arguments: Any, **values: Any) -> bool:
        Pipeline.objects.filter(pk=pipeline.pk).update(**{field: job})
        return transition(*arguments, **values)

    monkeypatch.setattr(services, "transition", start_stage_first)

    pipeline_cancel(pipeline=pipeline)

    job.refresh_from_db()
    assert job.cancel_requested_at is not None


def test_a_pipeline_can_be_cancelled_when_its_batch_has_just_ended() -> None:
    """The job of the batch has not ended yet."""
    pipeline = make_pipeline()
    Batch.objects.filter(pk=pipeline.batch_id).update(status=Batch.Status.COMPLETED)

    assert pipeline_cancel(pipeline=pipeline).status == "cancelled"


def test_a_resumed_pipeline_fails_if_its_prompts_have_been_deleted() -> None:
    pipeline = pipeline_cancel(pipeline=make_pipeline())
    get_storage().delete(pipeline.prompts_file.storage_key)  # as when the customer deletes the file

    pipeline = pipeline_resume(pipeline=pipeline)

    assert pipeline.status == "failed"
    assert pipeline.error == {
        "code": "file_not_found",
        "message": f"The file {pipeline.prompts_file_id} has been deleted.",
    }


def test_cancelling_while_deploying_stops_the_endpoint() -> None:
    pipeline = pipeline_cancel(pipeline=advance_to_stage("deploy", make_pipeline()))
    assert pipeline.deployment is not None
    assert pipeline.deployment.desired_state == Deployment.Desired.STOPPED


def test_the_end_of_a_job_advances_its_pipeline() -> None:
    pipeline = make_pipeline()
    assert pipeline.batch is not None
    Batch.objects.filter(pk=pipeline.batch_id).update(status=Batch.Status.COMPLETED, tokens_key="t")
    pipelines_advance_after_job(job_id=pipeline.batch.job_id)
    assert pipeline_fresh(pipeline).status == "training"


def test_a_deployment_that_another_process_has_just_created_does_not_fail_the_pipeline() -> None:
    """Two processes read the pipeline before either of them creates its deployment, so the second finds the name
    taken."""
    pipeline = end_training(end_batch(make_pipeline()))
    assert pipeline.evaluation_job is not None
    Job.objects.filter(pk=pipeline.evaluation_job_id).update(status=Job.Status.SUCCEEDED, result=REPORT)
    Pipeline.objects.filter(pk=pipeline.pk).update(status=Status.DEPLOYING)
    first, second = pipeline_fresh(pipeline), pipeline_fresh(pipeline)

    assert _deploy(first)
    assert not _deploy(second)

    pipeline.refresh_from_db()
    assert (pipeline.status, pipeline.error) == (Status.DEPLOYING, None)
    assert pipeline.deployment is not None


def test_the_evaluation_of_a_pipeline_compares_the_new_speculator_with_those_that_the_request_names() -> None:
    organization, base_model = make_organization(), make_base_model()
    old = make_speculator(base_model, organization)
    compared = {"compare_with": [old.pk, "ngram"]}
    pipeline = make_pipeline(organization, base_model=base_model, evaluation=compared)
    pipeline = advance_to_stage("evaluate", pipeline)
    assert pipeline.evaluation_job is not None
    params = pipeline.evaluation_job.params
    assert params["compare_with"] == [old.pk, "ngram"]
    assert params["compared"] == {old.pk: "medusa+suffix"}
    assert pipeline.evaluation_job.evaluation.settings["compare_with"] == [old.pk, "ngram"]


def test_a_pipeline_fails_if_a_speculator_to_compare_with_is_deleted_before_the_evaluation() -> None:
    organization, base_model = make_organization(), make_base_model()
    old = make_speculator(base_model, organization)
    pipeline = make_pipeline(organization, base_model=base_model, evaluation={"compare_with": [old.pk]})
    pipeline = advance_to_stage("train", pipeline)
    Speculator.objects.filter(pk=old.pk).update(status=Speculator.Status.DELETED)
    pipeline = end_training(pipeline)
    assert pipeline.status == "failed"
    assert pipeline.error is not None
    assert pipeline.error["code"] == "speculator_not_found"


def test_a_pipeline_refuses_to_compare_with_a_speculator_of_another_model_or_organization() -> None:
    organization, base_model = make_organization(), make_base_model()
    others = {
        make_speculator(make_base_model(), organization).pk: "speculator_mismatch",
        make_speculator(base_model, make_organization()).pk: "speculator_not_found",
    }
    for identity, code in others.items():
        with pytest.raises(ApiError) as refused:
            make_pipeline(organization, base_model=base_model, evaluation={"compare_with": [identity]})
        assert (refused.value.code, refused.value.param) == (code, "evaluation.compare_with.0")
