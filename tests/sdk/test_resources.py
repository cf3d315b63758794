"""The client's typed objects, and its `wait` methods, which succeed, fail or time out."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from slipstream import APIResponseError, Batch, BatchFailed, Pipeline, PipelineFailed, Progress, WaitTimeout
from slipstream.records import record
from slipstream.types import Deployment, File
from tests.sdk.api import ScriptedApi, batch_json, deployment_json, file_json, ok, page, pipeline_json, stage_json


def test_waiting_for_a_batch_reports_its_progress() -> None:
    done = batch_json(
        status="completed", output_file_id="file-9", request_counts={"total": 10, "completed": 9, "failed": 1}
    )
    api = ScriptedApi(ok(batch_json()), ok(batch_json(status="finalizing")), ok(done))
    seen: list[tuple[str, int]] = []

    batch = api.client().batches.wait("batch_1", on_progress=lambda b: seen.append((b.status, b.num_completed)))

    assert (batch.output_file_id, batch.num_rows, batch.num_failed) == ("file-9", 10, 1)
    assert seen == [("in_progress", 4), ("finalizing", 4), ("completed", 9)]
    assert api.slept == [1.0, 1.0]


def test_the_error_of_a_failed_batch_lists_its_bad_lines() -> None:
    data = [{"code": "invalid_json_line", "line": 3, "message": "This line is not JSON.", "param": None}]
    api = ScriptedApi(ok(batch_json(status="failed", errors={"object": "list", "data": data})))

    with pytest.raises(BatchFailed, match=r"line 3: This line is not JSON\. \[invalid_json_line\]") as caught:
        api.client().batches.wait("batch_1")

    assert caught.value.batch.errors[0].line == 3


def test_waiting_for_a_batch_without_any_answer_raises_an_error() -> None:
    """OpenAI's API, like ours, reports such a batch as completed, but without an output file."""
    counts = {"total": 2, "completed": 0, "failed": 2}
    api = ScriptedApi(ok(batch_json(status="completed", error_file_id="file-e", request_counts=counts)))

    with pytest.raises(BatchFailed, match="all 2 rows failed; see its error file file-e"):
        api.client().batches.wait("batch_1")


def test_waiting_longer_than_the_timeout_raises_an_error() -> None:
    api = ScriptedApi(ok(batch_json()))

    with pytest.raises(WaitTimeout, match="not finished after 0 s"):
        api.client().batches.wait("batch_1", timeout_seconds=0)


def test_a_pipeline_is_created_with_only_the_given_fields() -> None:
    api = ScriptedApi(ok(pipeline_json()))

    api.client().pipelines.create(
        name="math", model="tiny", prompts_file="file-1", held_out=32, gate={"min_speedup": 1.25, "outputs_equal": True}
    )

    assert api.body() == {
        "name": "math",
        "model": "tiny",
        "prompts_file": "file-1",
        "held_out": 32,
        "gate": {"min_speedup": 1.25, "outputs_equal": True},
        "deploy": True,
    }


def test_a_pipelines_stages_are_typed() -> None:
    running = stage_json("train", "running", progress={"done": 3, "total": 8, "unit": "steps"}, metrics={"loss": 1.5})
    api = ScriptedApi(ok(pipeline_json(status="training", stages=[stage_json("distil", "succeeded"), running])))

    stage = api.client().pipelines.retrieve("pipe_1").stage("train")

    assert stage.progress == Progress(done=3, total=8, unit="steps")
    assert stage.metrics == {"loss": 1.5}


def test_waiting_for_a_pipeline_ends_when_the_pipeline_is_live() -> None:
    report = {"outputs_equal": 32, "prompts_held_out": 32}
    api = ScriptedApi(ok(pipeline_json()), ok(pipeline_json(status="live", report=report, deployment_id="dep_1")))

    pipeline = api.client().pipelines.wait("pipe_1", poll_seconds=0.25)

    assert (pipeline.deployment_id, pipeline.report) == ("dep_1", report)
    assert api.slept == [0.25]


@pytest.mark.parametrize("status", ["failed", "rejected", "cancelled"])
def test_a_pipeline_that_does_not_go_live_raises_an_error_with_the_reason(status: str) -> None:
    stages = [stage_json("distil", "succeeded"), stage_json("train", "failed")]
    error = {"code": "out_of_memory", "message": "no room"}
    api = ScriptedApi(ok(pipeline_json(status=status, stages=stages, error=error)))

    with pytest.raises(PipelineFailed, match=rf"math is {status} in stage train: no room \[out_of_memory\]"):
        api.client().pipelines.wait("pipe_1")


@pytest.mark.parametrize("action", ["cancel", "resume"])
def test_pipelines_are_cancelled_and_resumed(action: str) -> None:
    api = ScriptedApi(ok(pipeline_json()))

    getattr(api.client().pipelines, action)("pipe_1")

    assert (api.requests[0].method, api.requests[0].url.path) == ("POST", f"/v1/pipelines/pipe_1/{action}")


def test_a_speculators_plot_is_saved(tmp_path: Path) -> None:
    api = ScriptedApi(httpx2.Response(200, content=b"\x89PNG"))

    path = api.client().speculators.plot("spec_1", tmp_path / "new" / "plot.png")

    assert path.read_bytes() == b"\x89PNG"
    assert api.requests[0].url.path == "/v1/speculators/spec_1/plot"


def test_waiting_for_a_deployment_ends_when_it_has_failed() -> None:
    error = {"code": "crash_loop", "message": "it died 5 times"}
    api = ScriptedApi(ok(deployment_json()), ok(deployment_json(state="failed", error=error)))

    deployment = api.client().deployments.wait("dep_1")

    assert (deployment.state, deployment.error_code, deployment.error_message) == (
        "failed",
        "crash_loop",
        "it died 5 times",
    )


@pytest.mark.parametrize("action", ["start", "stop"])
def test_deployments_are_started_and_stopped(action: str) -> None:
    api = ScriptedApi(ok(deployment_json()))

    getattr(api.client().deployments, action)("dep_1")

    assert api.requests[0].url.path == f"/v1/deployments/dep_1/{action}"


def test_models_are_listed() -> None:
    api = ScriptedApi(page({"id": "tiny", "object": "model", "created": 1, "owned_by": "slipstream"}))

    assert [model.id for model in api.client().models.list()] == ["tiny"]


def test_a_response_with_an_unknown_field_is_accepted() -> None:
    assert record(File, file_json(new_field=1)).id == "file-1"


def test_the_error_for_a_missing_field_names_the_field() -> None:
    values = file_json()
    del values["purpose"]

    with pytest.raises(APIResponseError, match="File needs purpose"):
        record(File, values)


@pytest.mark.parametrize(
    ("kind", "values", "final"),
    [
        (Batch, batch_json(status="finalizing"), False),
        (Batch, batch_json(status="expired"), True),
        (Pipeline, pipeline_json(status="gating"), False),
        (Pipeline, pipeline_json(status="rejected"), True),
    ],
)
def test_is_final_is_true_for_final_states(kind: type[Batch | Pipeline], values: dict[str, Any], final: bool) -> None:
    assert kind.from_json(values).is_final is final


def test_objects_cannot_be_changed() -> None:
    deployment = Deployment.from_json(deployment_json())

    with pytest.raises(AttributeError):
        deployment.state = "ready"  # type: ignore[misc]
