"""Copies that an earlier release has made of a deployment's speculator are deleted after the deployment has ended."""

from dataclasses import replace
from pathlib import Path

from control.serving.deployments.services import deployment_stop
from control.serving.deployments.supervisor import Supervisor
from tests.control.factories import make_organization
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    State,
    make_deployment,
    make_served_model,
    tick_until,
    tick_until_state,
)


def test_copies_that_an_earlier_release_made_for_ended_deployments_are_deleted(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.timings = replace(TIMINGS, tidy_seconds=0.0)
    organization, model = make_organization(), make_served_model(tmp_path / "model")
    ended, running = (make_deployment(model, organization, name) for name in ("ended", "running"))
    root = supervisor.config.data_dir / "deployments"
    for folder in (ended.pk, running.pk, ".dep_killed.1a2b"):  # the last one was left by an interrupted deletion
        (root / folder / "spc_1").mkdir(parents=True)
    for deployment in (ended, running):
        tick_until_state(supervisor, deployment, State.READY)

    deployment_stop(deployment=ended)
    tick_until_state(supervisor, ended, State.STOPPED)

    tick_until(supervisor, lambda: [folder.name for folder in root.iterdir()] == [running.pk])
    assert (root / running.pk / "spc_1").exists()
