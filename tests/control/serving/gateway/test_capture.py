"""Requests through the gateway are captured only for deployments whose owner has opted in."""

import time

import httpx2

from control.serving.captures.models import CapturedRequest
from control.serving.captures.sealing import Sealer
from control.serving.captures.services import capture_set
from control.serving.deployments.models import Deployment


def send_chat(base_url: str, token: str, content: str) -> int:
    body = {"model": "fast", "messages": [{"role": "user", "content": content}], "temperature": 0.5}
    headers = {"Authorization": f"Bearer {token}"}
    response = httpx2.post(f"{base_url}/chat/completions", json=body, headers=headers, trust_env=False)
    return int(response.status_code)


def test_requests_are_captured_only_after_the_opt_in(base_url: str, token: str, deployment: Deployment) -> None:
    assert send_chat(base_url, token, "before") == 200
    capture_set(deployment=deployment, hours=1)

    assert send_chat(base_url, token, "after") == 200

    deadline = time.monotonic() + 10
    while not (kept := list(CapturedRequest.objects.all())):  # the row is written after the answer has been sent
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [row.endpoint for row in kept] == ["/v1/chat/completions"]
    body = Sealer.of(deployment.organization_id).open(bytes(kept[0].sealed), deployment_id=deployment.pk)
    assert body["messages"][0]["content"] == "after"
    assert "model" not in body
