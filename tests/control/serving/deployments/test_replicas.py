"""Several replicas of a deployment, and several supervisors of one database."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from control.serving.deployments import leases
from control.serving.deployments.health import HealthWatch
from control.serving.deployments.launchers.engine_process import launch
from control.serving.deployments.launchers.interface import AlreadyRunning
from control.serving.deployments.launchers.processes import ProcessIdentity, endpoint_processes
from control.serving.deployments.measuring import CounterSampler
from control.serving.deployments.models import Deployment, Node, Replica
from control.serving.deployments.scaling import ScalingOptions
from control.serving.deployments.services import (
    deployment_scale,
    deployment_scaling_set,
    deployment_start,
    deployment_update,
)
from control.serving.deployments.supervisor import Supervisor
from tests.control.factories import make_base_model, make_organization
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    State,
    children_of,
    crashes_of,
    identity_of,
    make_deployment,
    make_replica,
    make_served_model,
    replica_of,
    tick_until,
    tick_until_state,
)

NO_PID = 2**22 + 1  # higher than any process id of Linux


def identities() -> set[ProcessIdentity]:
    rows = Replica.objects.exclude(pid=None).values_list("pid", "process_started")
    return {ProcessIdentity(pid, started) for pid, started in rows if pid is not None}


def ready_deployment(supervisor: Supervisor, folder: Path) -> Deployment:
    deployment = make_deployment(make_served_model(folder / "model"))
    tick_until_state(supervisor, deployment, State.READY)
    return deployment


def expire_leases(supervisor: Supervisor) -> None:
    """Makes the supervisor's leases expire, as if it had been killed."""
    Replica.objects.filter(supervisor=supervisor.id).update(lease_until="2000-01-01T00:00:00Z")


def test_a_deployment_is_scaled_up_and_down_without_a_restart_of_the_remaining_replica(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    deployment = ready_deployment(supervisor, tmp_path)
    first = identity_of(deployment)

    deployment_scale(deployment=deployment, num_replicas=3)
    assert deployment.state == State.PROVISIONING
    tick_until_state(supervisor, deployment, State.READY)
    three = identities()
    deployment_scale(deployment=deployment, num_replicas=1)
    tick_until(supervisor, lambda: Replica.objects.count() == 1)

    assert len(three) == 3
    assert identities() == {first}
    assert not any(identity.is_alive() for identity in three - {first})


def test_replicas_are_replaced_one_after_another(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    deployment_scale(deployment=deployment, num_replicas=2)
    tick_until_state(supervisor, deployment, State.READY)
    before, fewest = identities(), []

    def is_replaced() -> bool:
        fewest.append(Replica.objects.filter(state=Replica.State.READY).count())
        return Replica.objects.filter(generation=2, state=Replica.State.READY).count() == 2

    deployment_update(deployment=deployment, speculator=None)
    tick_until(supervisor, is_replaced)

    assert min(fewest) == 1
    assert not identities() & before
    assert crashes_of(deployment) == []


@pytest.mark.usefixtures("no_backoff")
def test_if_a_replica_of_a_new_generation_does_not_start_the_other_replicas_are_not_replaced(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    deployment_scale(deployment=deployment, num_replicas=2)
    tick_until_state(supervisor, deployment, State.READY)
    (tmp_path / "model" / "behaviour").write_text("crash")

    deployment_update(deployment=deployment, speculator=None)
    tick_until(supervisor, lambda: Replica.objects.filter(state=Replica.State.FAILED).exists())
    for _ in range(5):
        supervisor.tick()

    deployment.refresh_from_db()
    failed, serving = Replica.objects.order_by("state")
    assert (deployment.state, serving.state, serving.generation) == (State.DEGRADED, Replica.State.READY, 1)
    assert deployment.error is not None
    assert deployment.error.keys() == {"code", "message"}, "customers do not see the log"
    assert failed.error is not None
    assert "out of luck" in failed.error["log"]
    (tmp_path / "model" / "behaviour").write_text("serve")
    deployment_update(deployment=deployment, speculator=None)
    tick_until(supervisor, lambda: Replica.objects.filter(generation=3, state=Replica.State.READY).count() == 2)
    assert deployment_start(deployment=deployment).state != State.FAILED


def test_one_of_two_supervisors_works_on_a_replica_until_its_lease_expires(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    deployment = ready_deployment(supervisor, tmp_path)
    process, other = identity_of(deployment), Supervisor(supervisor.config, timings=TIMINGS)
    for _ in range(3):
        other.tick()
    assert replica_of(deployment).supervisor == supervisor.id

    outdated = replica_of(deployment)
    expire_leases(supervisor)
    other.tick()
    supervisor._crashed(outdated, "engine_exited", "written by a supervisor that has lost its lease")

    adopted = replica_of(deployment)
    assert (adopted.supervisor, adopted.fence) == (other.id, outdated.fence + 1)
    assert (identity_of(deployment), crashes_of(deployment)) == (process, [])
    os.kill(process.pid, signal.SIGKILL)
    tick_until(other, lambda: len(crashes_of(deployment)) == 1)
    other.stop()


def test_processes_of_another_node_are_left_alone_until_the_lease_of_the_node_expires(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    deployment = ready_deployment(supervisor, tmp_path)
    process = identity_of(deployment)
    elsewhere = Supervisor(
        supervisor.config.model_copy(update={"node_name": "elsewhere", "data_dir": tmp_path / "elsewhere"}),
        timings=TIMINGS,
    )
    expire_leases(supervisor)
    for _ in range(3):
        elsewhere.tick()
    assert (identity_of(deployment), replica_of(deployment).supervisor) == (process, supervisor.id)

    Node.objects.filter(name=supervisor.config.node_name).update(lease_until="2000-01-01T00:00:00Z")
    tick_until(elsewhere, lambda: len(crashes_of(deployment)) == 1)
    error = replica_of(deployment).error
    assert error is not None
    assert error["code"] == "node_lost"
    tick_until(elsewhere, lambda: replica_of(deployment).node == "elsewhere")
    supervisor.kill_strays()  # the first machine is back, and no row records its process any more
    tick_until(elsewhere, lambda: not process.is_alive())
    elsewhere.stop()
    for child in children_of(elsewhere):
        child.kill()
        child.wait(timeout=10)


def test_a_replica_is_not_started_twice_even_if_no_row_records_its_process(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    deployment = ready_deployment(supervisor, tmp_path)
    first = identity_of(deployment)

    with pytest.raises(AlreadyRunning):
        launch(supervisor.config, replica_of(deployment), device="", speculator_dir=None, lifeline=None)

    names = [name for name in endpoint_processes().values() if name.startswith(deployment.pk)]
    assert names == [f"{deployment.pk}-0-1"]
    assert first.is_alive()


@pytest.mark.django_db
def test_a_claim_takes_a_part_of_the_replicas_so_that_supervisors_share_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(leases, "MAX_CLAIMS", 2)
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    Replica.objects.bulk_create(Replica(deployment=deployment, number=number) for number in range(3))

    numbers = [
        leases.replicas_claim(Deployment.objects.all(), supervisor=name, node="n", launchers=["process"])
        for name in ("a", "b", "c")
    ]

    assert numbers == [2, 1, 0]


def test_the_number_of_queries_of_a_tick_does_not_depend_on_the_number_of_settled_deployments(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessIdentity, "is_alive", lambda _: True)
    monkeypatch.setattr(HealthWatch, "poll", lambda *_: None)
    monkeypatch.setattr(CounterSampler, "poll", lambda *_: None)
    model, organization = make_base_model(), make_organization()

    def num_queries(first: int, last: int) -> int:
        for number in range(first, last):
            deployment = make_deployment(model, organization, f"endpoint-{number}")
            deployment_scaling_set(deployment=deployment, scaling=ScalingOptions(scale_to_zero_seconds=600))
            make_replica(
                deployment, generation=1, pid=NO_PID, process_started="1", port=1, metered_until=timezone.now()
            )
        supervisor.tick()
        with CaptureQueriesContext(connection) as queries:
            supervisor.tick()
        return len(queries)

    assert num_queries(0, 2) == num_queries(2, 12)


def test_settled_replicas_are_not_read_at_every_tick(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = ready_deployment(supervisor, tmp_path)
    supervisor.timings = replace(TIMINGS, settled_seconds=3600.0)
    supervisor.tick()
    with CaptureQueriesContext(connection) as settled:
        supervisor.tick()
    supervisor._read_at = 0.0
    deployment_scale(deployment=deployment, num_replicas=2)
    supervisor.tick()
    with CaptureQueriesContext(connection) as changing:
        supervisor.tick()

    assert len(settled) == 0
    assert len(changing) > 0
