"""Helpers for tests of a real supervisor with fake engines."""

import datetime as dt
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from django.utils import timezone

from control.models.catalog.models import BaseModel, Speculator
from control.serving.deployments.launchers.process import ProcessLauncher
from control.serving.deployments.launchers.processes import ProcessIdentity
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.services import deployment_create
from control.serving.deployments.supervisor import Supervisor
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model, make_organization

FAKE_ENGINE = [sys.executable, str(Path(__file__).with_name("fake_engine.py"))]
REAL_ENGINE = [sys.executable, "-m", "engine.server"]
State = Deployment.State


def make_model_folder(folder: Path, behaviour: str = "serve") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "behaviour").write_text(behaviour)
    return folder


def make_served_model(folder: Path, behaviour: str = "serve", organization: Organization | None = None) -> BaseModel:
    model = make_base_model(organization=organization)
    model.path = str(make_model_folder(folder, behaviour))
    model.save()
    return model


def make_speculator(base_model: BaseModel, organization: Organization, **values: object) -> Speculator:
    defaults: dict[str, object] = {
        "name": "heads",
        "kind": "medusa",
        "status": Speculator.Status.READY,
        "target_revision": base_model.revision,
        "storage_prefix": "speculators/one",
    }
    return Speculator.objects.create(organization=organization, base_model=base_model, **{**defaults, **values})


def make_deployment(
    base_model: BaseModel,
    organization: Organization | None = None,
    name: str = "endpoint",
    speculator: Speculator | None = None,
) -> Deployment:
    return deployment_create(
        organization=organization or make_organization(), name=name, base_model=base_model, speculator=speculator
    )


def tick_until(supervisor: Supervisor, condition: Callable[[], bool], *, seconds: float = 15.0) -> None:
    """Calls `tick` as the command `supervise_deployments` does, until the condition is true. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            rows = list(Deployment.objects.values("name", "state", "generation", "observed_generation", "error"))
            pytest.fail(f"the condition was false for {seconds} s; the rows are {rows}")
        supervisor.tick()
        time.sleep(0.02)


def tick_until_state(
    supervisor: Supervisor, deployment: Deployment, state: Deployment.State, *, seconds: float = 15.0
) -> None:
    def reached() -> bool:
        deployment.refresh_from_db()
        return deployment.state == state

    tick_until(supervisor, reached, seconds=seconds)


def processes_of(supervisor: Supervisor) -> ProcessLauncher:
    launcher = supervisor.launchers[ProcessLauncher.name]
    assert isinstance(launcher, ProcessLauncher)
    return launcher


def children_of(supervisor: Supervisor) -> list["subprocess.Popen[bytes]"]:
    """The engine processes that the supervisor has started and not reaped."""
    launcher = processes_of(supervisor)
    return [*(process for _, process in launcher._children.values()), *launcher._unreaped]


def child_of(supervisor: Supervisor, deployment: Deployment) -> "subprocess.Popen[bytes]":
    """The process of the first replica, which the supervisor has started."""
    return processes_of(supervisor)._children[replica_of(deployment).pk][1]


def replica_of(deployment: Deployment) -> Replica:
    """The first replica, read from the database."""
    return Replica.objects.select_related("deployment").get(deployment=deployment, number=0)


def make_replica(deployment: Deployment, **values: object) -> Replica:
    """A ready replica without a process."""
    defaults: dict[str, object] = {"number": 0, "state": Replica.State.READY, "host": "127.0.0.1"}
    return Replica.objects.create(deployment=deployment, **{**defaults, **values})


def age_engines(deployment: Deployment, seconds: float = 3600.0) -> None:
    """Makes the deployment's fake engines, and the rows of its replicas, look unused for `seconds`."""
    for replica in Replica.objects.filter(deployment=deployment, port__isnull=False):
        url = f"http://{replica.host}:{replica.port}/age?seconds={seconds}"
        httpx2.post(url, headers={"Authorization": f"Bearer {replica.operator_token}"}, trust_env=False)
    Replica.objects.filter(deployment=deployment).update(used_at=timezone.now() - dt.timedelta(seconds=seconds))


def tick_until_asleep(supervisor: Supervisor, deployment: Deployment) -> None:
    """Ticks until the deployment sleeps. Ages the engines each time, because a health check that has already begun
    may still report a recent use."""

    def is_asleep() -> bool:
        age_engines(deployment)
        deployment.refresh_from_db()
        return deployment.state == State.SLEEPING

    tick_until(supervisor, is_asleep)


def num_wakes(folder: Path) -> int:
    """How often a fake engine with this model folder has woken."""
    wakes = folder / "wakes"
    return len(wakes.read_text().splitlines()) if wakes.exists() else 0


def crashes_of(deployment: Deployment) -> list[float]:
    """The times of the crashes of all replicas."""
    return [at for replica in Replica.objects.filter(deployment=deployment) for at in replica.crashes]


def identity_of(deployment: Deployment) -> ProcessIdentity:
    replica = replica_of(deployment)
    assert replica.pid is not None
    return ProcessIdentity(replica.pid, replica.process_started)
