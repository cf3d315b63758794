"""The requests and output of commands that have no separate test file, such as caps, rollouts and captures."""

import json
import time
from pathlib import Path
from typing import Any

import httpx2

from tests.sdk.api import ScriptedApi, batch_json, failure, file_json, ok, page, pipeline_json, stage_json
from tests.sdk.test_cli import Run, run

__all__ = ["run"]  # a fixture, which pytest finds here by its name

USD = {"value": 5.0, "currency": "usd"}
CAP = {
    "id": "cap_1", "project_id": None, "amount": USD, "spent": USD, "is_reached": True, "month_start": 1,
    "created_at": 1,
}  # fmt: skip
DISTILLATION = {
    "id": "distill_1", "model": "tiny", "status": "completed", "prompts_file": "file-1", "batch_id": "batch_1",
    "request_counts": {}, "is_trainable": True, "cost": USD, "created_at": 1,
}  # fmt: skip
MODEL = {"id": "model_1", "name": "mine", "status": "checking", "is_shared": False, "created_at": 1}
ROLLOUT = {
    "id": "rollout_1", "deployment_id": "dep_1", "speculator_id": "spec_1", "status": "starting", "share_percent": 5,
    "created_at": 1,
}  # fmt: skip
ADAPTER = {
    "id": "adapter_1", "name": "tone", "model": "tiny", "rank": 2, "target_modules": [], "bytes": 1, "created_at": 1
}  # fmt: skip


def request_line(api: ScriptedApi, index: int = -1) -> tuple[str, str]:
    request = api.requests[index]
    return request.method, request.url.path


def printed(result: Any) -> Any:
    """Returns the JSON that a successful command has printed."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_spend_cap_is_created_and_raised(run: Run) -> None:
    api = ScriptedApi(ok(CAP))

    assert printed(run("--json", "caps", "create", "5", api=api))["id"] == "cap_1"
    assert (request_line(api), api.body()) == (("POST", "/v1/spend_caps"), {"amount": 5.0})
    api = ScriptedApi(ok(CAP))
    printed(run("--json", "caps", "change", "cap_1", "7.5", api=api))
    assert (request_line(api), api.body()) == (("PATCH", "/v1/spend_caps/cap_1"), {"amount": 7.5})


def test_the_command_waits_for_a_distillation_and_creates_a_pipeline_from_it(run: Run, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("{}\n")
    running = {**DISTILLATION, "status": "in_progress"}
    api = ScriptedApi(ok(file_json()), ok(running), ok(DISTILLATION))

    made = printed(run("--json", "distillations", "create", "tiny", str(prompts), "--wait", api=api))
    assert made["status"] == "completed"
    api = ScriptedApi(ok(pipeline_json()))
    printed(run("--json", "pipelines", "create", "fast", "tiny", "distill_1", "--held-out-file", "file-2", api=api))
    body = api.body()
    assert (body["distillation_id"], body["held_out_file"]) == ("distill_1", "file-2")
    assert "prompts_file" not in body


def test_a_model_is_registered(run: Run) -> None:
    api = ScriptedApi(ok(MODEL))

    assert printed(run("--json", "models", "register", "mine", "s3://models/mine", api=api))["status"] == "checking"
    assert api.body() == {"name": "mine", "source": "s3://models/mine"}


def test_an_adapter_is_uploaded_from_its_folder(run: Run, tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text("x")
    deleted = httpx2.Response(200, json={"deleted": True})
    api = ScriptedApi(ok(file_json()), ok(file_json(id="file-2")), ok(ADAPTER), deleted, deleted)

    printed(run("--json", "adapters", "upload", str(tmp_path), "tone", "tiny", api=api))

    assert json.loads(api.requests[2].content)["weights_file"] == "file-2"
    assert [request_line(api, index) for index in (-2, -1)] == [
        ("DELETE", "/v1/files/file-1"),
        ("DELETE", "/v1/files/file-2"),
    ]


def test_a_rollout_is_started_and_listed(run: Run) -> None:
    api = ScriptedApi(ok(ROLLOUT))

    printed(run("--json", "rollouts", "create", "dep_1", "spec_1", "--share", "5", api=api))
    assert api.body() == {"speculator_id": "spec_1", "share_percent": 5}
    api = ScriptedApi(page(ROLLOUT))
    assert printed(run("--json", "rollouts", "list", "dep_1", api=api))["id"] == "rollout_1"
    assert request_line(api) == ("GET", "/v1/deployments/dep_1/rollouts")


def test_a_batch_is_repaired(run: Run) -> None:
    api = ScriptedApi(ok(batch_json(id="batch_2", repair={"rows": ["failed", "cut"], "max_tokens": 100})))

    options = ("--rows", "failed", "--rows", "cut", "--max-tokens", "100")
    batch = printed(run("--json", "batches", "repair", "batch_1", *options, api=api))

    assert batch["repair"] == {"rows": ["failed", "cut"], "max_tokens": 100}
    assert request_line(api) == ("POST", "/v1/batches/batch_1/repair")
    assert api.body() == {"rows": ["failed", "cut"], "max_tokens": 100}


def test_a_missing_local_file_is_a_usage_error_without_a_request(run: Run) -> None:
    result = run("batches", "create", "prompts.jsonl", api=ScriptedApi())

    assert result.exit_code == 2
    assert "no local file prompts.jsonl" in result.stderr


def test_a_refused_key_is_reported_with_advice(run: Run) -> None:
    def refused() -> ScriptedApi:
        return ScriptedApi(failure(401, "Incorrect API key provided.", code="invalid_api_key"))

    assert "slipstream login" in run("files", "list", api=refused()).stderr
    assert len(run("--json", "files", "list", api=refused()).stderr.splitlines()) == 1


def test_checking_an_invalid_dataset_exits_with_4_and_prints_its_errors(run: Run) -> None:
    bad = {"line": 7, "column": 2, "code": "invalid_json_line", "message": "This is no JSON.", "param": None}
    errors = {"data": [bad], "total_count": 1, "by_code": {"invalid_json_line": 1}}
    dataset = {"id": "dataset_1", "file_id": "file-1", "bytes": 9, "num_rows": 1, "num_answers": 0, "created_at": 1}

    result = run("datasets", "check", "file-1", api=ScriptedApi(ok(dataset | {"status": "invalid", "errors": errors})))

    assert result.exit_code == 4
    assert "line 7: This is no JSON. [invalid_json_line]" in result.stderr
    assert "slipstream datasets errors dataset_1" in result.stderr


def test_requests_are_captured_and_turned_into_a_file(run: Run) -> None:
    capture = {"deployment_id": "dep_1", "hours": 48, "num_requests": 0, "created_at": 1}
    api = ScriptedApi(ok(capture))

    options = ("--hours", "48", "--sample-percent", "10", "--redact", "email", "--redact-pattern", "C-[0-9]+")
    assert printed(run("--json", "captures", "set", "dep_1", *options, api=api))["hours"] == 48
    sent = {"hours": 48, "sample_percent": 10.0, "redact": ["email"], "redact_patterns": ["C-[0-9]+"]}
    assert (request_line(api), api.body()) == (("POST", "/v1/deployments/dep_1/capture"), sent)
    assert printed(run("--json", "captures", "file", "dep_1", api=ScriptedApi(ok(file_json()))))["id"] == "file-1"


def test_the_lifetime_of_a_key_is_given_in_days(run: Run) -> None:
    key = {"id": "key_1", "name": "ci", "hint": "…", "scopes": ["files:read"], "key": "sk_live_new", "created_at": 1}
    api = ScriptedApi(ok(key))

    made = printed(run("--json", "keys", "create", "ci", "--scope", "files:read", "--days", "30", api=api))

    assert made["key"] == "sk_live_new"
    assert api.body()["scopes"] == ["files:read"]
    assert 29 * 86400 < api.body()["expires_at"] - time.time() <= 30 * 86400


def test_nested_objects_are_shown_as_tables(run: Run) -> None:
    progress = {"done": 7, "total": 9, "unit": "rows"}
    report = {"speedup": 1.5701234, "equal": True, "concurrencies": [{"concurrency": 1}], "definitions": {}}
    stages = [stage_json("distil", "running", progress=progress, job_id="job_1")]
    pipeline = pipeline_json(stages=stages, report=report, cost={"value": 0.25, "currency": "usd"})

    output = run("pipelines", "show", "pipe_1", api=ScriptedApi(ok(pipeline))).stdout

    assert "7 / 9 rows" in output
    assert "1.5701" in output
    assert "0.25 usd" in output
    assert "{" not in output, "JSON is only printed with --json"


def test_without_a_terminal_each_object_of_a_list_is_one_unwrapped_line(run: Run) -> None:
    api = ScriptedApi(page(file_json(id=f"file-{'1' * 32}", filename="a-long-name" * 20)))

    *_, row = run("files", "list", api=api).stdout.splitlines()

    assert row.split()[:2] == [f"file-{'1' * 32}", "a-long-name" * 20]
