"""One real stack for all clients, with the demo's model and a chat template that has a place for tools."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from examples.prepare_model import prepare
from tests.clients.environments import Client, NotInstallableError, python_of
from tests.e2e.stack import Stack, assert_nothing_is_left, start_stack, wait_for

ENDPOINT = "assistant"
RUN_SECONDS = 600.0

# Tool calls have the format of Hermes and Qwen. The model was not trained with tools; only grammars make it call one.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}{# <tool_call> #}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    error: str | None  # the traceback of a failed check
    value: Any  # the check's return value, as JSON


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(prepare(), tmp_path_factory.mktemp("model") / "smollm2")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """A running stack whose deployment ENDPOINT is ready."""
    stack = start_stack(tmp_path_factory.mktemp("stack") / "data", "--model", f"smollm2={model_dir}")
    try:
        with openai.OpenAI(base_url=stack.url, api_key=stack.key) as client:
            body = {"name": ENDPOINT, "model": "smollm2"}
            deployment: Any = client.post("/deployments", cast_to=object, body=body)
            wait_for(lambda: _is_ready(client, deployment["id"]), 240.0, "the deployment is not ready")
        yield stack
    finally:
        assert stack.stop() == 0
    assert_nothing_is_left(stack)


def _is_ready(client: openai.OpenAI, deployment: str) -> bool:
    now: Any = client.get(f"/deployments/{deployment}", cast_to=object)
    assert now["state"] in ("provisioning", "ready"), now
    return bool(now["state"] == "ready")


@pytest.fixture(scope="session")
def outcomes(
    stack: Stack, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Client], dict[str, Outcome]]:
    """Returns a function that returns a client's outcomes by the names of the checks; its first call runs the script.

    Raises: NotInstallableError
    """
    known: dict[str, dict[str, Outcome] | NotInstallableError] = {}

    def outcomes_of(client: Client) -> dict[str, Outcome]:
        if client.name not in known:
            try:
                known[client.name] = _run(client, stack, model_dir, tmp_path_factory.mktemp(client.name))
            except NotInstallableError as error:
                known[client.name] = error
        found = known[client.name]
        if isinstance(found, NotInstallableError):
            raise found
        return found

    return outcomes_of


def _run(client: Client, stack: Stack, model_dir: Path, folder: Path) -> dict[str, Outcome]:
    results = folder / "results.jsonl"
    variables = {
        "OPENAI_BASE_URL": stack.url,
        "OPENAI_API_KEY": stack.key,
        "ANTHROPIC_BASE_URL": stack.url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": stack.key,
        "SLIPSTREAM_ENDPOINT": ENDPOINT,
        "SLIPSTREAM_TOKENIZER": str(model_dir),
        "CHECK_RESULTS": str(results),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [str(python_of(client)), str(client.script)]
    with (folder / "output.log").open("wb") as log:
        code = subprocess.run(
            command, cwd=folder, env=os.environ | variables, stdout=log, stderr=log, timeout=RUN_SECONDS
        ).returncode
    if code:
        pytest.fail((folder / "output.log").read_text(errors="replace")[-4000:])
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    return {line["check"]: Outcome(line["error"], line["value"]) for line in lines}
