"""The copies of a deployment's speculator and adapters are deleted after the deployment has ended."""

from dataclasses import replace
from pathlib import Path

from control.core.storage.backends import get_storage
from control.serving.deployments.services import deployment_start, deployment_stop
from control.serving.deployments.supervisor import Supervisor
from tests.control.factories import make_organization
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    State,
    make_deployment,
    make_served_model,
    make_speculator,
    tick_until,
    tick_until_state,
)


def test_the_files_of_ended_deployments_are_deleted_and_copied_again_for_a_restart(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.timings = replace(TIMINGS, tidy_seconds=0.0)
    organization, model = make_organization(), make_served_model(tmp_path / "model")
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    (artifact / "config.json").write_text("{}")
    get_storage().put_folder("speculators/one", artifact)
    speculator = make_speculator(model, organization)
    ended, running = (make_deployment(model, organization, name, speculator) for name in ("ended", "running"))
    for deployment in (ended, running):
        tick_until_state(supervisor, deployment, State.READY)
    root = supervisor.config.data_dir / "deployments"
    (root / ".dep_killed.1a2b" / "spc_1").mkdir(parents=True)  # left by a supervisor that was killed during a deletion
    assert (root / ended.pk / speculator.pk / "config.json").exists()

    deployment_stop(deployment=ended)
    tick_until_state(supervisor, ended, State.STOPPED)

    tick_until(supervisor, lambda: [folder.name for folder in root.iterdir()] == [running.pk])
    assert (root / running.pk / speculator.pk / "config.json").exists()
    deployment_start(deployment=ended)
    tick_until_state(supervisor, ended, State.READY)
    assert (root / ended.pk / speculator.pk / "config.json").exists()
