"""A real supervisor with real processes, each of which runs a fake engine."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from botocore.exceptions import EndpointConnectionError

from control.core.storage.backends import FolderStorage, get_storage
from control.serving.deployments.launchers.engine_process import log_path
from control.serving.deployments.launchers.processes import NAME_VARIABLE, ProcessIdentity, endpoint_processes
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.observations import backoff_seconds
from control.serving.deployments.services import deployment_delete, deployment_start, deployment_stop, deployment_update
from control.serving.deployments.supervisor import Supervisor
from tests.control.factories import make_organization
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    FAKE_ENGINE,
    State,
    crashes_of,
    identity_of,
    make_deployment,
    make_model_folder,
    make_replica,
    make_served_model,
    make_speculator,
    processes_of,
    replica_of,
    tick_until,
    tick_until_state,
)


def send_request(deployment: Deployment) -> httpx2.Response:
    deployment.refresh_from_db()
    return httpx2.post(
        f"http://127.0.0.1:{replica_of(deployment).port}/v1/completions",
        json={"prompt": "hello"},
        headers={"Authorization": f"Bearer {replica_of(deployment).token}"},
        trust_env=False,
    )


def test_an_endpoint_is_ready_once_its_engine_is_healthy(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"), name="quick")

    tick_until_state(supervisor, deployment, State.READY)

    assert deployment.healthy_at is not None
    assert deployment.error is None
    options = send_request(deployment).json()["options"]
    assert (options["model_name"], options["model_dir"]) == ("quick", str(tmp_path / "model"))
    assert options["drafter"] is None


def test_an_engine_that_never_passes_its_health_check_is_never_ready(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model", "mute"))
    supervisor.timings = replace(TIMINGS, startup_seconds=0.5)
    tick_until(supervisor, lambda: Replica.objects.exclude(pid=None).exists())
    process = identity_of(deployment)

    tick_until(supervisor, lambda: Deployment.objects.get().error is not None)

    deployment.refresh_from_db()
    assert deployment.error == {
        "code": "startup_timeout",
        "message": "The engine could not generate a token for 0 s.",  # `startup_seconds`, rounded
    }
    assert deployment.healthy_at is None
    tick_until(supervisor, lambda: not process.is_alive())


def test_the_engine_gets_the_speculator_from_storage(supervisor: Supervisor, tmp_path: Path) -> None:
    organization = make_organization()
    model = make_served_model(tmp_path / "model")
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    (artifact / "config.json").write_text("{}")
    get_storage().put_folder("speculators/one", artifact)
    deployment = make_deployment(model, organization, speculator=make_speculator(model, organization))

    tick_until_state(supervisor, deployment, State.READY)

    options = send_request(deployment).json()["options"]
    assert options["drafter"] == "medusa+suffix"
    assert Path(options["speculator_dir"], "config.json").read_text() == "{}"


@pytest.mark.usefixtures("no_backoff")
def test_a_speculator_missing_from_storage_fails_the_deployment(supervisor: Supervisor, tmp_path: Path) -> None:
    organization = make_organization()
    model = make_served_model(tmp_path / "model")
    deployment = make_deployment(model, organization, speculator=make_speculator(model, organization))

    tick_until_state(supervisor, deployment, State.FAILED)

    assert deployment.error is not None
    assert "could not be read from storage" in deployment.error["message"]


@pytest.mark.usefixtures("no_backoff")
def test_unreachable_storage_counts_as_a_crash(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise EndpointConnectionError(endpoint_url="http://storage")

    monkeypatch.setattr(FolderStorage, "get_folder", unreachable)  # the error that S3 would raise
    organization = make_organization()
    model = make_served_model(tmp_path / "model")
    deployment = make_deployment(model, organization, speculator=make_speculator(model, organization))

    tick_until_state(supervisor, deployment, State.FAILED)

    assert deployment.error is not None
    assert "could not be read from storage" in deployment.error["message"]


def test_a_dead_engine_is_noticed_within_two_seconds_and_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)
    first = identity_of(deployment)

    os.kill(first.pid, signal.SIGKILL)
    killed = time.monotonic()
    tick_until_state(supervisor, deployment, State.PROVISIONING)
    noticed = time.monotonic() - killed
    tick_until_state(supervisor, deployment, State.READY)

    assert noticed < 2.0
    assert len(crashes_of(deployment)) == 1
    assert identity_of(deployment) != first
    assert send_request(deployment).status_code == 200


def test_the_delay_after_a_crash_doubles_up_to_a_minute() -> None:
    assert [backoff_seconds(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_crashed_engine_is_not_restarted_during_its_back_off(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model", "crash"))

    tick_until(supervisor, lambda: bool(crashes_of(deployment)))
    for _ in range(5):
        supervisor.tick()

    deployment.refresh_from_db()
    assert replica_of(deployment).pid is None
    assert len(crashes_of(deployment)) == 1
    assert deployment.error == {"code": "engine_exited", "message": "The engine ended with code 3."}
    assert "out of luck" in log_path(supervisor.config, deployment.pk).read_text()


@pytest.mark.usefixtures("no_backoff")
def test_five_crashes_in_a_row_are_a_crash_loop(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model", "crash"))

    tick_until_state(supervisor, deployment, State.FAILED)
    for _ in range(5):
        supervisor.tick()

    deployment.refresh_from_db()
    assert (deployment.state, replica_of(deployment).pid) == (State.FAILED, None)
    assert len(crashes_of(deployment)) == 5
    assert deployment.error is not None
    assert deployment.error["code"] == "crash_loop"


@pytest.mark.usefixtures("no_backoff")
def test_starting_a_failed_deployment_clears_its_crashes(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model", "crash"))
    tick_until_state(supervisor, deployment, State.FAILED)
    make_model_folder(tmp_path / "model", "serve")

    deployment_start(deployment=deployment)
    tick_until_state(supervisor, deployment, State.READY)

    assert crashes_of(deployment) == []
    assert deployment.error is None


def test_crashes_older_than_ten_minutes_do_not_count(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model", "crash"))
    make_replica(deployment, state=Replica.State.PROVISIONING, crashes=[time.time() - 601.0] * 4)

    tick_until(supervisor, lambda: len(crashes_of(deployment)) == 1)

    deployment.refresh_from_db()
    assert deployment.state == State.PROVISIONING


def test_stopping_a_deployment_ends_its_process(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)
    process = identity_of(deployment)

    deployment_stop(deployment=deployment)
    tick_until_state(supervisor, deployment, State.STOPPED)

    assert not process.is_alive()
    replica = replica_of(deployment)
    assert (replica.pid, replica.port, replica.token, replica.crashes) == (None, None, "", [])


def test_an_engine_that_ignores_sigterm_is_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model", "stubborn"))
    supervisor.timings = replace(TIMINGS, drain_seconds=0.3)
    tick_until_state(supervisor, deployment, State.READY)
    process = identity_of(deployment)

    deployment_stop(deployment=deployment)
    tick_until_state(supervisor, deployment, State.STOPPED)

    assert not process.is_alive()


def test_deleting_a_deployment_ends_its_process(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)
    process = identity_of(deployment)

    deployment_delete(deployment=deployment)
    tick_until_state(supervisor, deployment, State.STOPPED)

    assert not process.is_alive()


def test_a_change_of_the_speculator_restarts_the_engine_and_is_not_a_crash(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    organization = make_organization()
    model = make_served_model(tmp_path / "model")
    deployment = make_deployment(model, organization)
    tick_until_state(supervisor, deployment, State.READY)
    first = identity_of(deployment)
    artifact = make_model_folder(tmp_path / "artifact")
    get_storage().put_folder("speculators/one", artifact)

    deployment_update(deployment=deployment, speculator=make_speculator(model, organization))
    tick_until(supervisor, lambda: Deployment.objects.get().observed_generation == 2)
    tick_until_state(supervisor, deployment, State.READY)

    assert not first.is_alive()
    assert crashes_of(deployment) == []
    assert send_request(deployment).json()["options"]["drafter"] == "medusa+suffix"


def test_the_next_supervisor_adopts_the_engines_of_the_previous_one(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)
    process = identity_of(deployment)
    supervisor.stop()
    assert process.is_alive()
    assert send_request(deployment).status_code == 200

    successor = Supervisor(supervisor.config, timings=TIMINGS)
    successor.kill_strays()
    for _ in range(5):
        successor.tick()

    assert identity_of(deployment) == process
    assert process.is_alive()
    assert crashes_of(deployment) == []
    os.kill(process.pid, signal.SIGKILL)
    tick_until(successor, lambda: len(crashes_of(deployment)) == 1)
    successor.stop()


def test_a_process_that_reuses_a_recorded_pid_is_not_adopted(supervisor: Supervisor, tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    make_replica(deployment, pid=bystander.pid, process_started="another life", port=1, generation=1)
    Deployment.objects.update(observed_generation=1, state=State.READY)

    tick_until(supervisor, lambda: bool(crashes_of(deployment)))
    deployment_stop(deployment=Deployment.objects.get())
    tick_until_state(supervisor, deployment, State.STOPPED)

    assert bystander.poll() is None
    bystander.communicate(b"\n")


def test_an_engine_process_that_no_row_records_is_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    """A supervisor that dies between the start of a process and the update of the row leaves such a process."""
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    stray = subprocess.Popen(
        [*FAKE_ENGINE, "--model-dir", str(tmp_path / "model"), "--host", "127.0.0.1", "--port", "0"],
        env={**os.environ, NAME_VARIABLE: f"{deployment.pk}-0-1"},
        start_new_session=True,
    )
    while stray.pid not in endpoint_processes():  # the kernel shows the variables only after the start of the program
        assert stray.poll() is None
        time.sleep(0.01)

    supervisor.kill_strays()

    assert stray.wait(timeout=10) == -signal.SIGKILL


def test_a_crash_reported_for_an_outdated_row_changes_nothing(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)
    process = identity_of(deployment)
    outdated = replica_of(deployment)
    deployment_stop(deployment=deployment)

    supervisor._crashed(outdated, "engine_exited", "late")

    deployment.refresh_from_db()
    assert (deployment.state, crashes_of(deployment)) == (State.STOPPING, [])
    assert isinstance(process, ProcessIdentity)


def test_an_engine_gets_the_same_device_and_kernel_settings_as_a_job(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_CPU_KERNELS", "off")
    processes_of(supervisor).config = supervisor.config.model_copy(update={"device": "cpu"})
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)

    environment = Path(f"/proc/{identity_of(deployment).pid}/environ").read_text()

    assert send_request(deployment).json()["options"]["device"] == "cpu"
    assert "SLIPSTREAM_CPU_KERNELS=off" in environment


def test_the_engine_gets_no_secret_of_the_control_plane(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_DATABASE_URL", "postgresql://user:secret@host/name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("MAIL_PASSWORD", "secret")
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)

    environment = Path(f"/proc/{identity_of(deployment).pid}/environ").read_text()

    assert "SLIPSTREAM_ENGINE_TOKEN" in environment
    assert "DATABASE_URL" not in environment
    assert "AWS_SECRET" not in environment
    assert "MAIL_PASSWORD" not in environment
    replica = replica_of(deployment)
    assert replica.token
    assert replica.token not in Path(f"/proc/{replica.pid}/cmdline").read_text(), (
        "every user can read the arguments of a process"
    )
