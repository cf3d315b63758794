"""Requests through the gateway are kept only for deployments with an opt-in."""

import time

import httpx2

from control.serving.captures.models import CapturedRequest
from control.serving.captures.services import capture_set
from control.serving.deployments.models import Deployment


def ask(base_url: str, token: str, content: str) -> int:
    body = {"model": "fast", "messages": [{"role": "user", "content": content}], "temperature": 0.5}
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx2.post(f"{base_url}/chat/completions", json=body, headers=headers, trust_env=False)
    return int(answer.status_code)


def test_requests_are_kept_from_the_opt_in_on(base_url: str, token: str, deployment: Deployment) -> None:
    assert ask(base_url, token, "before") == 200
    capture_set(deployment=deployment, hours=1)

    assert ask(base_url, token, "after") == 200

    deadline = time.monotonic() + 10
    while not (kept := list(CapturedRequest.objects.all())):  # the row is written after the answer has been sent
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [(row.endpoint, row.body["messages"][0]["content"]) for row in kept] == [("/v1/chat/completions", "after")]
    assert "model" not in kept[0].body
