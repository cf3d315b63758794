"""`manage.py up` restarts killed processes, starts again after it was killed, and refuses a second start."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import openai

from tests.command_lines import CommandLines
from tests.e2e.conftest import ENVIRONMENT, MODEL, SECRETS
from tests.e2e.stack import ROOT, Stack, assert_nothing_is_left, start_stack, wait_for
from tests.e2e.test_openai import ENDED, row, run_batch, upload


def kill(stack: Stack, fragment: str) -> None:
    """Kills the process with `fragment` in its command line, but not that process's keeper.

    The keeper runs `parent_death.py`: it started the process, and ends it when `up` ends. Its command line contains the
    command line of the process.
    """
    (pid,) = [pid for pid in stack.processes(fragment) if not is_keeper(pid)]
    os.kill(pid, signal.SIGKILL)


def is_keeper(pid: int) -> bool:
    return b"parent_death.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def is_serving(stack: Stack) -> bool:
    try:
        return httpx2.get(stack.url.replace("/v1", "/health"), trust_env=False, timeout=2.0).status_code == 200
    except httpx2.HTTPError:
        return False


def environment_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")


def secrets_of(data_dir: Path) -> list[str]:
    """Returns the passwords and keys in the stack's files."""
    texts = [path.read_text() for path in data_dir.rglob("*.json") if path.name in ("credentials.json", "ready.json")]
    words = {word for text in texts for word in re.findall(r'(?:password|key|secret|token)": *"([^"]{12,})"', text)}
    words |= set(re.findall(r"^requirepass (\S+)", (data_dir / "valkey" / "valkey.conf").read_text(), re.MULTILINE))
    return [*words, (data_dir / "secret_key").read_text().strip()]


def test_no_process_has_a_secret_among_its_arguments_while_jobs_and_endpoints_run(
    stack: Stack, client: openai.OpenAI, endpoint: str
) -> None:
    webhook = client.post("/webhook_endpoints", cast_to=object, body={"url": "https://example.com/hook"})
    assert isinstance(webhook, dict)
    with CommandLines() as commands:
        batch = run_batch(client, [json.dumps(row(number)) for number in range(4)])
    engine_tokens = [entry.partition("=")[2] for pid in stack.endpoints() for entry in environment_of(pid)
                     if entry.startswith("SLIPSTREAM_ENGINE_TOKEN=")]  # fmt: skip
    secrets = [*secrets_of(stack.data_dir), *SECRETS.values(), *engine_tokens, webhook["secret"]]

    assert batch.status == "completed"
    assert len(engine_tokens) == len(stack.endpoints()) >= 1
    assert min(map(len, secrets)) >= 12
    for program in ("manage.py up", "uvicorn control.asgi", "supervise_deployments", "engine.server", "workers.run"):
        assert commands.of(program), f"{program} did not run"
    assert [word for word in secrets if commands.of(word)] == []


def test_a_killed_api_server_is_restarted(stack: Stack) -> None:
    kill(stack, "uvicorn control.asgi")

    wait_for(lambda: not is_serving(stack), 5.0, "the server has not ended")
    wait_for(lambda: is_serving(stack), 30.0, "the server has not come back")


def test_a_worker_killed_during_a_batch_loses_and_duplicates_no_row(stack: Stack, client: openai.OpenAI) -> None:
    lines = [json.dumps(row(number, max_tokens=48)) for number in range(64)]
    batch = client.batches.create(
        input_file_id=upload(client, lines), endpoint="/v1/chat/completions", completion_window="24h"
    )
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, 60.0, "no shard is done")  # type: ignore[union-attr]

    kill(stack, "celery -A workers.celery_app")

    wait_for(lambda: client.batches.retrieve(batch.id).status in ENDED, 120.0, "the batch has not ended")
    ended = client.batches.retrieve(batch.id)
    assert ended.status == "completed"
    assert ended.error_file_id is None
    assert ended.output_file_id is not None
    answers = [json.loads(line) for line in client.files.content(ended.output_file_id).text.splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"row-{number}" for number in range(64)]


def test_an_endpoint_keeps_serving_after_its_supervisor_is_killed(
    stack: Stack, client: openai.OpenAI, endpoint: str
) -> None:
    engines = stack.endpoints()

    kill(stack, "supervise_deployments")
    answer = client.completions.create(model=endpoint, prompt="Still there?", max_tokens=4)
    log = stack.data_dir / "logs" / "endpoints.log"
    wait_for(lambda: "endpoint adopted" in log.read_text(), 30.0, "the next supervisor has not adopted the endpoint")

    assert answer.usage is not None
    assert stack.endpoints() == engines
    assert client.completions.create(model=endpoint, prompt="And now?", max_tokens=4).usage is not None


def test_a_second_stack_on_the_same_data_folder_is_refused(stack: Stack) -> None:
    second = subprocess.run(
        [sys.executable, "manage.py", "up", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "SLIPSTREAM_DATA_DIR": str(stack.data_dir)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert second.returncode == 1
    assert f"another `up` (pid {stack.process.pid}) serves the data folder" in second.stderr


def test_a_killed_stack_leaves_no_process_and_starts_again(stack: Stack, endpoint: str, model_dir: Path) -> None:
    """Kills `up` with SIGKILL while an endpoint runs, then starts it again. This must be the last test."""
    assert stack.endpoints()

    stack.process.kill()
    stack.process.wait(10)

    wait_for(lambda: not stack.processes() and not stack.endpoints(), 10.0, "processes of the stack have not ended")
    restarted = start_stack(stack.data_dir, "--model", f"{MODEL}={model_dir}", **ENVIRONMENT)
    assert restarted.key == stack.key
    assert is_serving(restarted)
    assert restarted.stop() == 0
    assert_nothing_is_left(restarted)
