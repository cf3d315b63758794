"""Only requests of the same project may draft from each other's past answers."""

from pathlib import Path
from typing import Any

import pytest

from engine.request import Request
from engine.tokenizer import Tokenizer
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import serve
from tests.tiny_model import make_tiny_model


@pytest.mark.parametrize(
    ("headers", "body", "memory"),
    [
        ({"x-slipstream-memory": "proj_1"}, {}, "proj_1"),
        ({"x-slipstream-memory": "proj_1"}, {"remember_answers": True}, "proj_1"),
        ({"x-slipstream-memory": "proj_1"}, {"remember_answers": False}, None),
        ({}, {"remember_answers": True}, None),
    ],
)
def test_requests_share_past_answers_only_within_the_project_that_the_gateways_header_names(
    tmp_path: Path, headers: dict[str, str], body: dict[str, Any], memory: str | None
) -> None:
    tokenizer = Tokenizer.load(make_tiny_model(tmp_path, num_layers=1))
    seen = []

    def script(request: Request) -> list[int]:
        seen.append(request.memory)
        return [70]

    with serve(FakeEngine(script), tokenizer) as live:
        for path, prompt in (("completions", "prompt"), ("chat/completions", "messages")):
            content = "hello" if prompt == "prompt" else [{"role": "user", "content": "hello"}]
            assert live.http.post(f"/v1/{path}", json={prompt: content, **body}, headers=headers).status_code == 200

    assert set(seen) == {memory}
