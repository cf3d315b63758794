from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from control.core.settings.config import get_config
from control.serving.deployments.launchers.processes import ProcessIdentity
from control.serving.deployments.models import Replica
from control.serving.deployments.supervisor import Supervisor, SupervisorTimings
from tests.control.serving.deployments.support import FAKE_ENGINE, children_of

TIMINGS = SupervisorTimings(
    probe_seconds=0.02, startup_seconds=10.0, hang_seconds=10.0, drain_seconds=5.0, settled_seconds=0.0
)


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the back-off after a crash to 0, so that the next launch follows at once."""
    monkeypatch.setattr("control.serving.deployments.observations.backoff_seconds", lambda num_crashes: 0.0)


@pytest.fixture
def supervisor(db: None, settings: Settings, tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor that launches fake engines, which are ended after the test."""
    settings.SLIPSTREAM_ENGINE_COMMAND = FAKE_ENGINE
    settings.SLIPSTREAM = get_config().model_copy(update={"data_dir": tmp_path / "data"})
    supervisor = Supervisor(settings.SLIPSTREAM, timings=TIMINGS)
    yield supervisor
    supervisor.stop()
    for pid, started in Replica.objects.exclude(pid=None).values_list("pid", "process_started"):
        assert pid is not None
        ProcessIdentity(pid, started).kill()
    for child in children_of(supervisor):
        child.wait(timeout=10)
