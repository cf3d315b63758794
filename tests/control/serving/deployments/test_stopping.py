"""A supervisor that stops also stops its engines if its option `drains` is set."""

from pathlib import Path

import pytest
from pytest_django import Settings

from control.core.settings.config import get_config
from control.serving.deployments.launchers.process import ProcessLauncher
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_stop
from control.serving.deployments.supervisor import Supervisor
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    FAKE_ENGINE,
    State,
    child_of,
    identity_of,
    make_deployment,
    make_served_model,
    replica_of,
    tick_until,
    tick_until_state,
)


@pytest.mark.django_db
@pytest.mark.parametrize("drains", [True, False])
def test_engines_survive_their_supervisor_unless_it_drains(settings: Settings, tmp_path: Path, drains: bool) -> None:
    settings.SLIPSTREAM_ENGINE_COMMAND = FAKE_ENGINE
    settings.SLIPSTREAM = get_config().model_copy(update={"data_dir": tmp_path / "data"})
    supervisor = Supervisor(settings.SLIPSTREAM, timings=TIMINGS, drains=drains)
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)
    identity = identity_of(deployment)
    process = child_of(supervisor, deployment)

    supervisor.stop()

    try:
        assert identity.is_alive() is not drains
        after = Deployment.objects.get(pk=deployment.pk)
        assert (after.state, replica_of(deployment).pid is None) == (
            (State.PROVISIONING, True) if drains else (State.READY, False)
        )
    finally:
        identity.kill()
        process.wait(timeout=10)


@pytest.mark.django_db
def test_the_next_supervisor_of_a_draining_engine_does_not_cut_off_its_streams(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second SIGTERM ends an engine at once. The next supervisor waits, and ends the engine after the time limit."""
    settings.SLIPSTREAM_ENGINE_COMMAND = FAKE_ENGINE
    settings.SLIPSTREAM = get_config().model_copy(update={"data_dir": tmp_path / "data"})
    signals: list[str] = []
    monkeypatch.setattr(ProcessLauncher, "drain", lambda self, replica: signals.append(str(replica)))
    first, second = (Supervisor(settings.SLIPSTREAM, timings=TIMINGS) for _ in range(2))
    deployment = make_deployment(make_served_model(tmp_path / "model", "stubborn"))
    tick_until_state(first, deployment, State.READY)
    process = child_of(first, deployment)
    deployment_stop(deployment=deployment)
    tick_until(first, lambda: replica_of(deployment).state == "draining")

    first.stop()
    tick_until_state(second, deployment, State.STOPPED)

    assert len(signals) == 1
    process.wait(timeout=10)
