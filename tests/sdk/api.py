"""A fake service that returns given responses and records the requests."""

import json
from collections.abc import Callable
from typing import Any

import httpx2

from slipstream import Client

ScriptedResponse = httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]


class ScriptedApi:
    """Returns its responses in order, one for each request. A further request fails the test."""

    def __init__(self, *responses: ScriptedResponse) -> None:
        self._responses = list(responses)
        self.requests: list[httpx2.Request] = []
        self.slept: list[float] = []  # seconds of each pause of the client, which does not really sleep

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        self.requests.append(request)
        assert self._responses, f"unexpected request {request.method} {request.url}"
        response = self._responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response if isinstance(response, httpx2.Response) else response(request)

    @property
    def is_exhausted(self) -> bool:
        return not self._responses

    def client(self, **options: Any) -> Client:
        return Client(
            "http://api.test/v1",
            "sk_live_secret",
            transport=httpx2.MockTransport(self),
            sleep=self.slept.append,
            **options,
        )

    def body(self, index: int = -1) -> Any:
        return json.loads(self.requests[index].content)


def ok(body: Any, **headers: str) -> httpx2.Response:
    return httpx2.Response(200, json=body, headers=headers)


def failure(status: int, message: str = "no", *, code: str | None = None, **headers: str) -> httpx2.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return httpx2.Response(status, json={"error": error}, headers={n.replace("_", "-"): v for n, v in headers.items()})


def page(*data: Any, has_more: bool = False) -> httpx2.Response:
    last_id = data[-1]["id"] if data else None
    return ok({"object": "list", "data": list(data), "last_id": last_id, "has_more": has_more})


def file_json(**changes: Any) -> dict[str, Any]:
    values = {"id": "file-1", "object": "file", "bytes": 3, "filename": "in.jsonl", "purpose": "batch"}
    return values | {"status": "processed", "created_at": 1, "expires_at": None} | changes


def batch_json(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"id": "batch_1", "object": "batch", "endpoint": "/v1/chat/completions", "created_at": 1}
    values |= {"input_file_id": "file-1", "output_file_id": None, "error_file_id": None, "errors": None}
    values |= {"status": "in_progress", "request_counts": {"total": 10, "completed": 4, "failed": 1}, "metadata": {}}
    return values | changes


def stage_json(name: str, status: str = "pending", **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"name": name, "status": status, "job_id": None, "progress": None, "metrics": {}}
    return values | {"started_at": None, "finished_at": None} | changes


def pipeline_json(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"id": "pipe_1", "object": "pipeline", "name": "math", "model": "tiny", "created_at": 1}
    values |= {"status": "distilling", "prompts_file": "file-1", "held_out_file": "file-2", "batch_id": None}
    values |= {"speculator_id": None, "deployment_id": None, "report": None, "error": None, "finished_at": None}
    stages = [stage_json(name) for name in ("distil", "train", "evaluate", "gate", "deploy")]
    return values | {"stages": stages} | changes


def deployment_json(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"id": "dep_1", "object": "deployment", "name": "math", "model": "tiny", "created_at": 1}
    values |= {"speculator_id": None, "desired_state": "running", "state": "provisioning", "error": None}
    return values | {"healthy_at": None} | changes
