"""`slipstream caps`, `distillations`, `models`, `adapters`, `rollouts`: what they ask and print."""

import json
from pathlib import Path
from typing import Any

import httpx2

from tests.sdk.api import ScriptedApi, file_json, ok, page, pipeline_json
from tests.sdk.test_cli import Run, run

__all__ = ["run"]  # the fixture

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


def asked(api: ScriptedApi, index: int = -1) -> tuple[str, str]:
    request = api.requests[index]
    return request.method, request.url.path


def printed(result: Any) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_cap_is_made_and_raised(run: Run) -> None:  # the fixture
    api = ScriptedApi(ok(CAP))

    assert printed(run("--json", "caps", "create", "5", api=api))["id"] == "cap_1"
    assert (asked(api), api.body()) == (("POST", "/v1/spend_caps"), {"amount": 5.0})
    api = ScriptedApi(ok(CAP))
    printed(run("--json", "caps", "change", "cap_1", "7.5", api=api))
    assert (asked(api), api.body()) == (("PATCH", "/v1/spend_caps/cap_1"), {"amount": 7.5})


def test_a_distillation_is_waited_for_and_named_in_a_pipeline(run: Run, tmp_path: Path) -> None:
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
    gone = httpx2.Response(200, json={"deleted": True})
    api = ScriptedApi(ok(file_json()), ok(file_json(id="file-2")), ok(ADAPTER), gone, gone)

    printed(run("--json", "adapters", "upload", str(tmp_path), "tone", "tiny", api=api))

    assert json.loads(api.requests[2].content)["weights_file"] == "file-2"
    assert [asked(api, index) for index in (-2, -1)] == [("DELETE", "/v1/files/file-1"), ("DELETE", "/v1/files/file-2")]


def test_a_rollout_is_begun_and_listed(run: Run) -> None:
    api = ScriptedApi(ok(ROLLOUT))

    printed(run("--json", "rollouts", "create", "dep_1", "spec_1", "--share", "5", api=api))
    assert api.body() == {"speculator_id": "spec_1", "share_percent": 5}
    api = ScriptedApi(page(ROLLOUT))
    assert printed(run("--json", "rollouts", "list", "dep_1", api=api))["id"] == "rollout_1"
    assert asked(api) == ("GET", "/v1/deployments/dep_1/rollouts")
