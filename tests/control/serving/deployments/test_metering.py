"""The ledger records the device time of an endpoint exactly once, even if supervisors are killed, run at the same time,
or report the end of a process twice."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from control.billing.ledger.models import LedgerLine, Subject
from control.serving.deployments import observations
from control.serving.deployments.metering import INTERVAL, endpoint_meter
from control.serving.deployments.models import Replica
from control.serving.deployments.services import deployment_stop
from control.serving.deployments.supervisor import Supervisor
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model
from tests.control.serving.deployments.support import (
    State,
    make_deployment,
    make_replica,
    make_served_model,
    replica_of,
    tick_until_state,
)


def launched(organization: Organization, *, seconds_ago: float) -> Replica:
    """Makes a replica whose process was launched, and metered for the last time, `seconds_ago`."""
    made = make_replica(make_deployment(make_base_model(), organization))
    assert observations.replica_launched(replica=made, pid=4_000_000, process_started="1", port=1, token="t")
    Replica.objects.filter(pk=made.pk).update(metered_until=timezone.now() - timedelta(seconds=seconds_ago))
    return reloaded(made)


def reloaded(replica: Replica) -> Replica:
    return Replica.objects.select_related("deployment").get(pk=replica.pk)


def recorded_seconds(deployment_id: str) -> list[float]:
    lines = LedgerLine.objects.filter(subject=Subject.ENDPOINT_TIME, object_id=deployment_id).order_by("started_at")
    return [line.count / 1000 for line in lines]


def test_the_device_time_of_a_running_process_is_recorded_once_per_interval(organization: Organization) -> None:
    replica = launched(organization, seconds_ago=INTERVAL.total_seconds() + 5)

    for _ in range(3):
        endpoint_meter(replica=replica)
        replica.refresh_from_db(fields=["metered_until"])

    assert recorded_seconds(replica.deployment_id) == [pytest.approx(65, abs=2)]


def test_a_process_without_a_leased_device_does_not_keep_the_price_of_the_previous_device(
    organization: Organization,
) -> None:
    replica = launched(organization, seconds_ago=0)
    Replica.objects.filter(pk=replica.pk).update(device_kind="cuda", hour_nanousd=2_500_000_000)

    observations.replica_crashed(replica=reloaded(replica), code="engine_exited", message="")
    assert observations.replica_launched(
        replica=reloaded(replica), launcher="ray", pid=4_000_001, process_started="2", port=1, token="t"
    )

    launched_again = reloaded(replica)
    assert (launched_again.device_kind, launched_again.hour_nanousd) == ("", None)


def test_of_two_supervisors_that_read_the_same_row_one_records_the_interval(organization: Organization) -> None:
    replica = launched(organization, seconds_ago=INTERVAL.total_seconds() + 5)
    same_row = reloaded(replica)

    endpoint_meter(replica=replica)
    endpoint_meter(replica=same_row)

    (line,) = LedgerLine.objects.filter(subject=Subject.ENDPOINT_TIME, object_id=replica.deployment_id)
    assert reloaded(replica).metered_until == line.ended_at, "the recorded time has a gap"


def test_a_supervisor_with_an_old_row_does_not_meter_a_process_that_has_ended(organization: Organization) -> None:
    replica = launched(organization, seconds_ago=INTERVAL.total_seconds() + 5)
    old_row = reloaded(replica)
    observations.replica_crashed(replica=replica, code="engine_exited", message="")

    endpoint_meter(replica=old_row)

    assert reloaded(replica).metered_until is None
    assert recorded_seconds(replica.deployment_id) == [INTERVAL.total_seconds()]


def test_the_device_time_of_a_process_that_outlives_its_supervisor_is_recorded_without_a_gap(
    organization: Organization,
) -> None:
    replica = launched(organization, seconds_ago=3600)  # no supervisor has run for an hour

    endpoint_meter(replica=replica)

    assert recorded_seconds(replica.deployment_id) == [pytest.approx(3600, abs=2)]


def test_a_process_that_died_without_a_supervisor_is_charged_for_at_most_one_interval(
    organization: Organization,
) -> None:
    replica = launched(organization, seconds_ago=3600)

    observations.replica_crashed(replica=replica, code="engine_exited", message="")

    assert recorded_seconds(replica.deployment_id) == [INTERVAL.total_seconds()]


def test_an_endpoint_that_stops_is_recorded_until_its_end_and_a_second_report_of_its_end_adds_nothing(
    organization: Organization,
) -> None:
    replica = launched(organization, seconds_ago=10)
    late = reloaded(replica)
    observations.replica_crashed(replica=replica, code="engine_exited", message="")
    observations.replica_ended(replica=late)

    assert recorded_seconds(replica.deployment_id) == [pytest.approx(10, abs=2)]
    assert reloaded(replica).metered_until is None


def test_a_process_launched_by_an_earlier_release_without_metering_is_metered_from_now_on(
    organization: Organization,
) -> None:
    replica = launched(organization, seconds_ago=0)
    Replica.objects.filter(pk=replica.pk).update(metered_until=None)
    replica.refresh_from_db(fields=["metered_until"])

    endpoint_meter(replica=replica)

    replica.refresh_from_db(fields=["metered_until"])
    assert replica.metered_until is not None
    assert recorded_seconds(replica.deployment_id) == []


def test_the_supervisor_records_the_device_time_of_a_process_from_its_launch_to_its_end(
    supervisor: Supervisor, organization: Organization, tmp_path: Path
) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"), organization)
    tick_until_state(supervisor, deployment, State.READY)
    launched_at = replica_of(deployment).metered_until
    assert launched_at is not None
    Replica.objects.filter(deployment=deployment).update(metered_until=launched_at - INTERVAL)

    supervisor.tick()
    deployment_stop(deployment=deployment)
    tick_until_state(supervisor, deployment, State.STOPPED)

    total = sum(recorded_seconds(deployment.pk))
    assert total == pytest.approx((timezone.now() - launched_at + INTERVAL).total_seconds(), abs=2)
    assert len(recorded_seconds(deployment.pk)) == 2
