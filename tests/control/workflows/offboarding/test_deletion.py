"""Promise S51 of docs/reliability.md: nothing of a deleted organization is left, except for what `KEPT` names.

Promise S52: until the time to cancel has ended, nothing is lost, and another organization's data never changes.
"""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.utils import timezone

from control.billing.ledger.models import LedgerLine
from control.core.settings.config import get_config
from control.queue.jobs.models import Job
from control.queue.jobs.services import UNFINISHED
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.services import deployment_create
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import CANCELLABLE
from control.tenants.accounts.models import Member, Organization, Project, User
from control.tenants.audit.models import AuditErasure, AuditEvent
from control.workflows.offboarding import erasing
from control.workflows.offboarding.draining import organizations_drain
from control.workflows.offboarding.erasing import KEPT, organizations_erase
from control.workflows.offboarding.services import organization_deletion_cancel, organization_deletion_request
from control.workflows.offboarding.tables import owned_tables
from tests.control.factories import make_base_model, make_job, make_key, make_organization
from tests.control.tenants.row_security.any_row import make_any_row
from tests.control.workflows.offboarding.support import (
    counts_of,
    end_work,
    fill,
    ids_of,
    put,
    stored_keys,
    texts_of_all_rows,
)
from tests.control.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_data_dir")]

KEPT_LABELS = {*KEPT, "audit.AuditErasure"}


def request_deletion(organization: Organization) -> None:
    organization_deletion_request(organization=organization, name=organization.name)


def end_grace_period(organization: Organization) -> None:
    past = timezone.now() - dt.timedelta(seconds=1)
    Organization.objects.filter(pk=organization.pk).update(erase_after=past)


def erase(organization: Organization) -> None:
    request_deletion(organization)
    end_grace_period(organization)
    organizations_erase()


def traces_of(ids: set[str]) -> set[tuple[str, str]]:
    """Returns the tables, and the storage, in which an id or name occurs, except for what is kept."""
    rows = {(label, identity) for label, text in texts_of_all_rows() for identity in ids if identity in text}
    stored = {("storage", identity) for key in stored_keys() for identity in ids if identity in key}
    return {(label, identity) for label, identity in rows | stored if label not in KEPT_LABELS}


def labels_with_rows(organization: Organization) -> Iterator[str]:
    for table in owned_tables():
        if table.label not in KEPT and table.rows(organization.pk).exists():
            yield table.label


def check_that_nothing_is_left() -> None:
    organization, neighbour = make_organization("Leaving Ltd 4711"), make_organization()
    fill(organization)
    fill(neighbour)
    ids, objects = ids_of(organization), stored_keys()
    before, foreign_keys = counts_of(neighbour), {key for key in objects if neighbour.pk in key}
    assert set(labels_with_rows(organization)) == {table.label for table in owned_tables()} - set(KEPT)
    assert {label for label, _ in traces_of(ids)} > {"storage", "jobs.Job", "audit.AuditEvent", "accounts.User"}

    erase(organization)

    assert not Organization.objects.filter(pk=organization.pk).exists()
    assert traces_of(ids) == set()
    assert counts_of(neighbour) == before
    assert {key for key in stored_keys() if neighbour.pk in key} == foreign_keys
    assert {key.partition("/")[2] for key in stored_keys() if key.startswith("jobs/")} == {
        key.partition("/")[2]
        for job in Job.objects.filter(organization=neighbour)
        for key in objects
        if f"jobs/{job.pk}" in key
    }


def test_nothing_of_a_deleted_organization_is_left_in_any_table_or_in_storage() -> None:
    check_that_nothing_is_left()


def test_each_kept_table_exists_and_only_the_ledger_is_kept() -> None:
    assert set(KEPT) == {"ledger.LedgerLine"}
    assert set(KEPT) <= {table.label for table in owned_tables()}


def test_the_ledger_and_the_record_of_the_deletion_are_kept_without_personal_data(client: Client) -> None:
    organization = Organization.objects.get()
    make_any_row(LedgerLine, organization)
    user = User.objects.create_user("person@example.com")
    member = Member.objects.create(organization=organization, user=user, role="owner")
    _, token = make_key(organization, member=member)
    owner = Client(headers={"Authorization": f"Bearer {token}"})

    response = owner.post(
        "/v1/organization/deletion", {"name": organization.name}, content_type="application/json"
    ).json()
    num_events = AuditEvent.objects.filter(organization=organization).count()
    end_grace_period(organization)
    organizations_erase()

    record = AuditErasure.objects.get()
    assert (record.organization_id, record.requested_by) == (organization.pk, member.public_id)
    assert int(record.requested_at.timestamp()) == response["requested_at"]
    assert record.num_events == num_events > 0
    assert record.finished_at is not None
    assert LedgerLine.objects.filter(organization_id=organization.pk).count() == 1
    assert [text for _, text in texts_of_all_rows() if "person@example.com" in text] == []


def test_an_erasure_whose_process_dies_after_each_step_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process erases one row or one object in a single step, and dies before the next step."""
    organization = make_organization()
    fill(organization)
    for number in range(5):
        put(f"{organization.pk}/more/{number}")
    ids = ids_of(organization)
    monkeypatch.setattr(erasing, "ROWS_A_STEP", 1)
    monkeypatch.setattr(erasing, "OBJECTS_A_STEP", 1)
    monkeypatch.setattr(erasing, "SECONDS_A_ROUND", 0.0)
    request_deletion(organization)
    end_grace_period(organization)

    num_rounds = 0
    while not AuditErasure.objects.filter(finished_at__isnull=False).exists():
        organizations_erase()
        num_rounds += 1
        assert num_rounds < 1_000

    assert num_rounds > 50
    assert traces_of(ids) == set()


@pytest.mark.parametrize("dies_in", ["_delete_only", "audit_log_erase", "erasure_finish"])
def test_an_erasure_that_fails_anywhere_is_completed_by_the_next_round(
    dies_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    organization = make_organization()
    fill(organization)
    ids = ids_of(organization)
    works, calls = getattr(erasing, dies_in), [0]

    def fails_every_second_time(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] % 2:
            raise OSError("killed")
        return works(*args)

    monkeypatch.setattr(erasing, dies_in, fails_every_second_time)
    request_deletion(organization)
    end_grace_period(organization)
    for _ in range(200):
        organizations_erase()
        if AuditErasure.objects.filter(finished_at__isnull=False).exists():
            break

    assert calls[0] > 1
    assert traces_of(ids) == set()


def test_keys_are_refused_at_once_and_work_again_after_the_deletion_is_cancelled(client: Client) -> None:
    organization = Organization.objects.get()
    wrong = client.post("/v1/organization/deletion", {"name": "another"}, content_type="application/json")
    accepted = client.post("/v1/organization/deletion", {"name": organization.name}, content_type="application/json")
    refused = client.get("/v1/files")
    organization_deletion_cancel(organization=organization)
    again = client.get("/v1/files")

    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "name_mismatch")
    assert accepted.status_code == 200, accepted.content
    grace = accepted.json()["erase_after"] - accepted.json()["requested_at"]
    assert abs(grace - get_config().deletion_grace_hours * 3600) <= 1
    assert (refused.status_code, again.status_code) == (401, 200)


def test_only_keys_with_all_rights_may_delete_or_export_the_organization(organization: Organization) -> None:
    for values in ({"scopes": ["admin", "files:*"]}, {"project": Project.objects.create(organization=organization)}):
        client = Client(headers={"Authorization": f"Bearer {make_key(organization, **values)[1]}"})
        body = {"name": organization.name}
        statuses = [
            client.post("/v1/organization/deletion", body, content_type="application/json").status_code,
            client.post("/v1/organization/exports").status_code,
            client.get("/v1/organization/exports").status_code,
        ]
        assert statuses == [403, 403, 403], values
    organization.refresh_from_db()
    assert organization.deletion_requested_at is None


def test_everything_that_runs_is_stopped_and_nothing_is_deleted_before_the_time_to_cancel_has_ended() -> None:
    organization, neighbour = make_organization(), make_organization()
    for owner in (organization, neighbour):
        World(owner).ids_of_all_objects()
    before, running, foreign = counts_of(organization), states_of(organization), states_of(neighbour)
    assert {"queued", "running"} & {status for status, _ in running.values()}
    request_deletion(organization)

    organizations_drain()
    organizations_erase()

    unfinished = Job.objects.filter(organization=organization, status__in=UNFINISHED)
    assert unfinished.exists()
    assert not unfinished.filter(cancel_requested_at=None).exists()
    deployments = Deployment.objects.filter(organization=organization, deleted_at=None)
    assert {deployment.desired_state for deployment in deployments} == {"stopped"}
    assert states_of(neighbour) == foreign
    after = counts_of(organization)
    assert {label for label in before if after[label] < before[label]} <= {"deployments.DeploymentSample"}
    assert not AuditErasure.objects.exists()


@pytest.mark.parametrize("status", Rollout.Status.values)
def test_a_rollout_that_can_be_cancelled_is_stopped(status: str) -> None:
    organization = make_organization()
    rollout = World(organization).rollout
    past = timezone.now()
    Rollout.objects.filter(pk=rollout.pk).update(status=status, started_at=past, watched_at=past)
    request_deletion(organization)

    organizations_drain()

    rollout.refresh_from_db()
    is_stopped = status in CANCELLABLE
    assert rollout.status == (Rollout.Status.ROLLED_BACK if is_stopped else status)
    assert (rollout.reason or {}).get("code") == ("cancelled" if is_stopped else None)


def states_of(organization: Organization) -> dict[str, tuple[str, object]]:
    jobs = Job.objects.filter(organization=organization).values_list("pk", "status", "cancel_requested_at")
    deployments = Deployment.objects.filter(organization=organization).values_list("pk", "desired_state", "state")
    return {pk: (status, more) for pk, status, more in [*jobs, *deployments]}


def test_an_organization_is_not_erased_while_a_job_or_a_process_of_it_runs() -> None:
    organization = make_organization()
    job = make_job(organization, status="running")
    deployment = deployment_create(organization=organization, name="d", base_model=make_base_model())
    replica = Replica.objects.create(deployment=deployment, number=0, pid=1)

    erase(organization)
    assert Organization.objects.filter(pk=organization.pk).exists()
    Job.objects.filter(pk=job.pk).update(finished_at=timezone.now())
    Replica.objects.filter(pk=replica.pk).update(pid=None)
    organizations_erase()  # the job has ended a moment ago, so its last attempt may still store objects
    assert Organization.objects.filter(pk=organization.pk).exists()
    end_work(organization)
    Replica.objects.filter(pk=replica.pk).update(pid=1)
    organizations_erase()
    assert Organization.objects.filter(pk=organization.pk).exists()
    Replica.objects.filter(pk=replica.pk).update(pid=None)
    organizations_erase()
    assert not Organization.objects.filter(pk=organization.pk).exists()


def test_a_deletion_can_be_cancelled_until_the_time_to_cancel_has_ended_and_not_later() -> None:
    kept, erased = make_organization(), make_organization()
    for organization in (kept, erased):
        fill(organization)
        request_deletion(organization)
    before = counts_of(kept)
    organization_deletion_cancel(organization=kept)
    end_grace_period(erased)

    with pytest.raises(Exception, match="no deletion that can still be cancelled"):
        organization_deletion_cancel(organization=erased)
    organizations_erase()

    assert counts_of(kept) == before
    assert list(Organization.objects.filter(pk__in=[kept.pk, erased.pk])) == [kept]


def test_people_with_another_membership_and_staff_keep_their_accounts() -> None:
    leaving, other = make_organization(), make_organization()
    only, both = User.objects.create_user("only"), User.objects.create_user("both")
    staff = User.objects.create_user("staff", is_staff=True)
    for user in (only, both, staff):
        Member.objects.create(organization=leaving, user=user)
    Member.objects.create(organization=other, user=both)

    erase(leaving)

    assert set(User.objects.values_list("username", flat=True)) == {"both", "staff"}


def test_the_log_of_the_console_keeps_no_names_of_a_deleted_organization() -> None:
    organization, other = make_organization(), make_organization()
    staff = User.objects.create_user("staff", is_staff=True)
    for owner in (organization, other):
        project = Project.objects.create(organization=owner, name=f"plan of {owner.pk}")
        LogEntry.objects.create(
            user=staff,
            content_type=ContentType.objects.get_for_model(Project),
            object_id=project.pk,
            object_repr=str(project),
            action_flag=1,
        )

    erase(organization)

    assert LogEntry.objects.get().object_repr == f"plan of {other.pk}"
