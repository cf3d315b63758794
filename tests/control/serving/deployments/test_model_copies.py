"""A copy of a model is kept as long as an engine uses it, with or without a supervisor."""

import os
from pathlib import Path

import pytest

from control.core.storage.backends import get_storage
from control.models.catalog.cache import copy_folder, model_copies_limit, use_copy
from control.serving.deployments.launchers.engine_process import launch
from control.serving.deployments.launchers.interface import LaunchError
from control.serving.deployments.supervisor import Supervisor
from tests.control.factories import make_base_model, make_organization
from tests.control.serving.deployments.support import (
    State,
    identity_of,
    make_deployment,
    make_model_folder,
    make_replica,
    make_served_model,
    make_speculator,
    tick_until,
    tick_until_state,
)
from tests.control.serving.deployments.test_supervisor import send_request
from tests.engine.server.live import wait_until


def test_the_model_of_a_running_engine_is_kept_until_the_engine_has_ended(supervisor: Supervisor) -> None:
    config = supervisor.config.model_copy(update={"node_cache": 0})
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


def test_the_speculator_of_a_running_engine_is_kept_and_one_copy_serves_all_deployments(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    config = supervisor.config.model_copy(update={"node_cache": 0})
    organization, model = make_organization(), make_served_model(tmp_path / "model")
    get_storage().put_folder("speculators/one", make_model_folder(tmp_path / "artifact"))
    speculator = make_speculator(model, organization)
    first, second = (make_deployment(model, organization, name, speculator) for name in ("first", "second"))
    for deployment in (first, second):
        tick_until_state(supervisor, deployment, State.READY)
        options = send_request(deployment).json()["options"]
        assert options["speculator_dir"] == str(copy_folder(config, speculator.pk))
    lock = Path(f"{copy_folder(config, speculator.pk)}.lock")
    engines = [identity_of(deployment) for deployment in (first, second)]

    engines[0].kill()
    tick_until(supervisor, lambda: not engines[0].is_alive())
    os.utime(lock, (0, 0))
    model_copies_limit(config)
    assert copy_folder(config, speculator.pk).exists()


def test_a_launch_fails_if_the_copy_of_the_model_has_been_deleted(supervisor: Supervisor) -> None:
    model = make_base_model()
    model.source = "s3://models/llama"
    model.save()
    use_copy(copy_folder(supervisor.config, model.pk)).close()

    with pytest.raises(LaunchError, match="not available"):
        launch(supervisor.config, make_replica(make_deployment(model)), device="", speculator_dir=None, lifeline=None)
