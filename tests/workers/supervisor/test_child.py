"""`ChildProcess` gives the child a clean environment, reads its events, and ends its whole process group."""

import dataclasses
import json
import os
import queue
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from control.core.settings.config import get_config
from control.models.catalog.cache import copy_folder, model_copies_limit, use_copy
from control.queue.jobs import config
from workers.contracts import EvaluationSpec, Event, Failed, FailureClass, Finished, Progress
from workers.supervisor.child import ChildProcess
from workers.supervisor.outcomes import AttemptFailed
from workers.supervisor.run_child import attempt_failed, model_used

RunScript = Callable[..., ChildProcess]
SPEC = EvaluationSpec(
    job_id="job_1",
    model_dir="m",
    model_name="m",
    prompts_path="p",
    output_dir="o",
    checkpoint_dir="c",
    drafter="none",
    speculator_dir=None,
)


@pytest.fixture
def run_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunScript:
    """Returns a function that starts a child with the given Python code instead of `workers.run`."""

    def run(script: str, **options: Any) -> ChildProcess:
        path = tmp_path / "script.py"
        path.write_text(script)
        job_config = config.JobConfig(child_command=f"{sys.executable} {path}")
        monkeypatch.setattr("workers.supervisor.child.get_job_config", lambda: job_config)
        ids = {"organization_id": "org_1", "job_id": "job_1", "fence": 3, "request_id": "req_12345678"}
        log_path = tmp_path / "log" / "child.log"
        return ChildProcess(SPEC, folder=tmp_path, log_path=log_path, log_ids=ids, **options)

    return run


def events_of(child: ChildProcess) -> list[Event]:
    events = []
    while (event := child.next_event(20)) is not None:
        events.append(event)
    return events


def test_the_environment_of_a_child_contains_no_secrets(run_script: RunScript, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLIPSTREAM_DATABASE_URL", "SLIPSTREAM_SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, "secret")
    child = run_script(
        "import json, os\n"
        "print(json.dumps({'event': 'finished', 'result': dict(os.environ), 'artifacts': {}}), flush=True)\n"
    )
    (finished,) = events_of(child)
    child.stop(0)
    assert isinstance(finished, Finished)
    assert "PATH" in finished.result
    assert "secret" not in json.dumps(finished.result)


@pytest.mark.parametrize(("leased", "seen"), [("3", "3"), ("", ""), (None, "0,1")])
def test_a_child_sees_only_the_device_that_its_job_holds(
    monkeypatch: pytest.MonkeyPatch, run_script: RunScript, leased: str | None, seen: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    child = run_script(
        "import json, os\n"
        "seen = {'seen': os.environ['CUDA_VISIBLE_DEVICES']}\n"
        "print(json.dumps({'event': 'finished', 'result': seen, 'artifacts': {}}), flush=True)\n",
        visible_devices=leased,
    )
    (finished,) = events_of(child)
    child.stop(0)
    assert isinstance(finished, Finished)
    assert finished.result == {"seen": seen}


def test_an_output_line_that_is_not_an_event_fails_the_job_as_a_bug(run_script: RunScript) -> None:
    child = run_script("print('Loading weights...', flush=True)")
    (failed,) = events_of(child)
    child.stop(0)
    assert isinstance(failed, Failed)
    assert (failed.failure_class, failed.code) == ("bug", "invalid_event")


def test_stop_also_ends_processes_that_the_child_started(run_script: RunScript, tmp_path: Path) -> None:
    child = run_script(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        'print(\'{"event": "progress", "done": %d, "total": 0, "unit": "pid"}\' % child.pid, flush=True)\n'
        "time.sleep(60)\n"
    )
    started = child.next_event(20)
    assert isinstance(started, Progress)
    child.stop(0.1)
    deadline = time.monotonic() + 5
    while is_running(started.done) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(started.done)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("sent", "kept"), [(5, 5), (1, 1), (0, None), (-3, None), (10**30, None), (5.0, None), ("many", None)]
)
def test_the_number_of_rows_that_a_failed_child_reports_is_kept_only_if_it_is_possible(
    sent: Any, kept: int | None
) -> None:
    event = Failed(failure_class="out_of_memory", code="out_of_memory", message="Too big.", num_rows=sent)
    failure = attempt_failed(event).failure
    assert (failure.failure_class, failure.num_rows) == (FailureClass.OUT_OF_MEMORY, kept)


def test_standard_error_of_the_child_is_copied_to_the_log(run_script: RunScript, tmp_path: Path) -> None:
    child = run_script("raise RuntimeError('the disk is on fire')")
    assert events_of(child) == []
    assert child.wait(10) == 1
    child.stop(0)
    assert "the disk is on fire" in (tmp_path / "log" / "child.log").read_text()


def test_next_event_raises_queue_empty_after_the_timeout(run_script: RunScript) -> None:
    child = run_script("import time; time.sleep(60)")
    with pytest.raises(queue.Empty):
        child.next_event(0.01)
    child.stop(0)


def test_the_copy_of_a_model_is_not_deleted_while_a_child_uses_it(
    run_script: RunScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = get_config().model_copy(update={"data_dir": tmp_path, "node_cache": 0})
    monkeypatch.setattr(settings, "SLIPSTREAM", limits)
    folder = copy_folder(limits, "model")
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x")
    use_copy(folder).close()
    spec = dataclasses.replace(SPEC, model_dir=str(folder))
    with model_used(spec) as uses:
        child = run_script("import time; time.sleep(600)", uses=uses)

    os.utime(f"{folder}.lock", (0, 0))
    model_copies_limit(limits)
    assert folder.exists()
    child.stop(0)
    os.utime(f"{folder}.lock", (0, 0))
    model_copies_limit(limits)
    assert not folder.exists()
    use_copy(folder).close()
    with pytest.raises(AttemptFailed), model_used(spec):
        pass
