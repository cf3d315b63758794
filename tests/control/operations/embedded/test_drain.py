"""The stack of `manage.py up` gives a replaced replica as long as any supervisor does to finish its streams."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from control.core.settings.config import Config
from control.operations.embedded.stack import Stack
from control.serving.deployments.management.commands.supervise_deployments import Command
from control.serving.deployments.supervisor import SupervisorTimings


def test_replaced_replicas_may_finish_their_streams_for_the_usual_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: dict[str, list[str]] = {}

    def record(self: Stack, name: str, command: list[str], **_: Any) -> None:
        commands[name] = command

    monkeypatch.setattr(Stack, "_add", record)
    stack = Stack(Config(data_dir=tmp_path, redis_url=SecretStr("redis://127.0.0.1:1/0")), host="127.0.0.1", port=1)
    try:
        stack.start()
    finally:
        stack.cut_lifeline()
    arguments = commands["endpoints"][commands["endpoints"].index("supervise_deployments") + 1 :]
    options = Command().create_parser("manage.py", "supervise_deployments").parse_args(arguments)
    assert options.drain_seconds == SupervisorTimings().drain_seconds == 60.0
