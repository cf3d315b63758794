"""The supervisor starts the engines of each organization as a separate user of the operating system."""

import dataclasses
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from control.core.processes import engine_homes
from control.core.processes.engine_homes import engine_homes_limit
from control.core.settings.config import get_config
from control.serving.deployments.models import Deployment
from control.serving.deployments.supervisor import Supervisor
from tests.control.factories import make_organization
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    FAKE_ENGINE,
    State,
    child_of,
    children_of,
    identity_of,
    make_deployment,
    make_served_model,
    tick_until,
    tick_until_state,
)
from tests.engine.server.live import wait_until

PYTHON = "/usr/bin/python3"  # every user can run it
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or not Path(PYTHON).exists(),
        reason="only root on Linux can start a process as another user",
    ),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may pass through, unlike pytest's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def uid_of_process(deployment: Deployment) -> int:
    return Path(f"/proc/{identity_of(deployment).pid}").stat().st_uid


def test_engines_of_two_organizations_run_as_different_users_that_are_not_the_supervisors(
    settings: Settings, folder: Path
) -> None:
    engine = shutil.copy(FAKE_ENGINE[-1], folder)
    settings.SLIPSTREAM_ENGINE_COMMAND = [PYTHON, engine]
    settings.SLIPSTREAM = get_config().model_copy(update={"data_dir": folder / "data", "engine_uids": "61000-61001"})
    supervisor = Supervisor(settings.SLIPSTREAM, timings=TIMINGS, drains=True)
    organizations = [make_organization() for _ in range(3)]
    deployments = [
        make_deployment(make_served_model(folder / f"model{i}", organization=owner), owner, name=f"endpoint{i}")
        for i, owner in enumerate([organizations[0], organizations[0], organizations[1]])
    ]

    try:
        for deployment in deployments:
            tick_until_state(supervisor, deployment, State.READY)

        first, second, other = (uid_of_process(deployment) for deployment in deployments)
        assert first == second  # they start at the same time, so either organization may get the lower id
        assert {first, other} == {61000, 61001}
        one_too_many = make_deployment(
            make_served_model(folder / "model3", organization=organizations[2]), organizations[2], name="endpoint3"
        )
        tick_until_error(supervisor, one_too_many)
        assert one_too_many.error is not None
        assert "belong to other organizations" in one_too_many.error["message"]
    finally:
        processes = children_of(supervisor)
        supervisor.stop()
        for process in processes:
            process.wait(timeout=10)


def test_the_home_of_a_running_engine_is_kept_until_the_engine_has_ended(
    settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_homes, "MEASURE_SECONDS", -60.0)
    settings.SLIPSTREAM_ENGINE_COMMAND = [PYTHON, shutil.copy(FAKE_ENGINE[-1], folder)]
    limits = {"data_dir": folder / "data", "engine_uids": "61000-61001", "max_engine_homes_bytes": 0}
    settings.SLIPSTREAM = get_config().model_copy(update=limits)
    supervisor = Supervisor(settings.SLIPSTREAM, timings=dataclasses.replace(TIMINGS, tidy_seconds=0))
    owner = make_organization()
    deployment = make_deployment(make_served_model(folder / "model", organization=owner), owner)
    tick_until_state(supervisor, deployment, State.READY)
    home = folder / "data" / "engine_homes" / "61000"

    unused = home.with_name("61001")
    unused.mkdir()
    tick_until(supervisor, lambda: not unused.exists())
    assert home.exists()

    process = child_of(supervisor, deployment)
    process.kill()
    process.wait()
    supervisor.stop()

    def is_deleted() -> bool:  # the lock is free when the last thread of the killed process has ended
        engine_homes_limit(settings.SLIPSTREAM)
        return not home.exists()

    wait_until(is_deleted)


def tick_until_error(supervisor: Supervisor, deployment: Deployment) -> None:
    def has_error() -> bool:
        deployment.refresh_from_db()
        return deployment.error is not None

    tick_until(supervisor, has_error)
