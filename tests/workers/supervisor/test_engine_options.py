"""The engine options of a request reach the specs of the worker's child processes."""

from pathlib import Path
from typing import Any

import pytest

from control.core.storage.backends import get_storage
from control.models.engines.schemas import EngineOptions
from control.queue.jobs.models import Job
from control.workflows.batches.models import Batch
from tests.control.workflows.batches.helpers import make_batch
from tests.control.workflows.pipelines.helpers import advance_to_stage, make_pipeline
from tests.workers.supervisor.test_truncation import spec_of
from workers.contracts import BatchSpec, EvaluationSpec
from workers.supervisor import batch, evaluation

OPTIONS: dict[str, Any] = {
    "weights": "int8",
    "kv_dtype": "bf16",
    "max_context": 512,
    "max_concurrency": 4,
    "memory_share": 0.5,
    "drafting": "speculator",
    "draft_budget": 6,
}
ENGINE = ("weights", "kv_dtype", "max_context", "memory_share", "draft_budget")


def engine_of(spec: BatchSpec | EvaluationSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in ENGINE}


def batch_spec(job_batch: Batch, folder: Path) -> BatchSpec:
    spec = spec_of(job_batch.job, batch, batch.BatchHandler(), folder)
    assert isinstance(spec, BatchSpec)
    return spec


def evaluation_spec(job: Job | None, folder: Path) -> EvaluationSpec:
    weights = folder.with_suffix(".safetensors")
    weights.write_bytes(b"weights")
    get_storage().put_file("s/model.safetensors", weights)  # "s" is the prefix of the pipeline's speculator
    spec = spec_of(job, evaluation, evaluation.EvaluationHandler(), folder)
    assert isinstance(spec, EvaluationSpec)
    return spec


def test_the_child_of_a_batch_gets_the_options_of_the_request(db: None, tmp_path: Path) -> None:
    options = OPTIONS | {"drafting": "suffix"}

    spec = batch_spec(make_batch(engine=EngineOptions(**options)), tmp_path / "batch")

    assert engine_of(spec) == {name: options[name] for name in ENGINE}
    assert (spec.max_batch_size, spec.drafter) == (4, "suffix")


@pytest.mark.parametrize("engine", [None, EngineOptions()])
def test_the_child_of_a_batch_without_options_answers_as_many_rows_as_fit(
    db: None, tmp_path: Path, engine: EngineOptions | None
) -> None:
    spec = batch_spec(make_batch(engine=engine), tmp_path / "batch")

    assert (spec.max_batch_size, spec.drafter, spec.weights, spec.memory_share) == (None, "ngram", "auto", None)


def test_the_child_of_an_evaluation_gets_the_options_that_will_be_served(db: None, tmp_path: Path) -> None:
    pipeline = advance_to_stage("evaluate", make_pipeline(engine=OPTIONS))

    spec = evaluation_spec(pipeline.evaluation_job, tmp_path / "evaluation")

    assert engine_of(spec) == {name: OPTIONS[name] for name in ENGINE}
    assert (spec.max_concurrency, spec.drafter) == (4, "medusa+suffix")


def test_the_child_of_an_evaluation_that_an_earlier_release_queued_gets_the_defaults(db: None, tmp_path: Path) -> None:
    pipeline = advance_to_stage("evaluate", make_pipeline())
    job = pipeline.evaluation_job
    assert job is not None
    Job.objects.filter(pk=job.pk).update(params={name: v for name, v in job.params.items() if name != "engine"})

    spec = evaluation_spec(job, tmp_path / "evaluation")

    assert (spec.max_concurrency, spec.weights, spec.draft_budget) == (None, "auto", None)
