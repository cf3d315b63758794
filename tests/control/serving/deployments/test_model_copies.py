"""A copy of a model is kept as long as an engine uses it, with or without a supervisor."""

import os
from pathlib import Path

import pytest

from control.models.catalog.cache import copy_folder, model_copies_limit, use_copy
from control.serving.deployments.launchers.engine_process import launch
from control.serving.deployments.launchers.interface import LaunchError
from control.serving.deployments.supervisor import Supervisor
from tests.control.factories import make_base_model
from tests.control.serving.deployments.support import (
    State,
    identity_of,
    make_deployment,
    make_model_folder,
    make_replica,
    tick_until,
    tick_until_state,
)
from tests.engine.server.live import wait_until


def test_the_model_of_a_running_engine_is_kept_until_the_engine_has_ended(supervisor: Supervisor) -> None:
    config = supervisor.config.model_copy(update={"max_model_copies_bytes": 0})
    model = make_base_model()
    model.source = "s3://models/llama"
    model.save()
    folder = make_model_folder(copy_folder(config, model.pk))
    deployment = make_deployment(model)
    tick_until_state(supervisor, deployment, State.READY)
    lock = Path(f"{folder}.lock")

    os.utime(lock, (0, 0))
    model_copies_limit(config)
    assert folder.exists()

    engine = identity_of(deployment)
    engine.kill()
    tick_until(supervisor, lambda: not engine.is_alive())

    def is_deleted() -> bool:  # the lock is free when the last thread of the killed process has ended
        os.utime(lock, (0, 0))
        model_copies_limit(config)
        return not folder.exists()

    wait_until(is_deleted)


def test_a_launch_fails_if_the_copy_of_the_model_has_been_deleted(supervisor: Supervisor) -> None:
    model = make_base_model()
    model.source = "s3://models/llama"
    model.save()
    use_copy(copy_folder(supervisor.config, model.pk)).close()

    with pytest.raises(LaunchError, match="not available"):
        launch(supervisor.config, make_replica(make_deployment(model)), device="", speculator_dir=None, lifeline=None)
