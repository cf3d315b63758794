"""No organization exceeds its quota, however many requests run concurrently."""

import itertools
import threading
from collections.abc import Callable

import pytest
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client
from django.urls import reverse

from control.core.api.errors import ApiError
from control.data.files.models import File
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_claim_next, job_submit
from control.serving.deployments.models import Deployment
from control.serving.deployments.observations import replica_ended
from control.serving.deployments.services import (
    canary_create,
    deployment_create,
    deployment_start,
    deployment_stop,
)
from control.tenants.accounts.models import Organization, User
from control.tenants.audit.models import AuditEvent
from control.tenants.quotas.models import Limits
from control.tenants.quotas.quota import quota_of
from control.tenants.row_security.scope import Across, across_tenants, as_tenant
from tests.control.factories import chat_row, client_of, make_base_model, make_file, make_organization
from tests.control.serving.deployments.support import make_replica, make_speculator
from tests.databases import needs_postgres
from tests.workers.supervisor.live import LiveStack

NUM_CALLERS = 100


def with_limits(organization: Organization, **limits: int) -> Organization:
    Limits.objects.create(organization=organization, **limits)
    return organization


def call_concurrently(call: Callable[[], object]) -> list[str]:
    """Returns the results of a hundred concurrent calls: "done", or the code of the error."""
    start, outcomes = threading.Barrier(NUM_CALLERS), list[str]()

    def run() -> None:
        start.wait()
        try:
            call()
            outcomes.append("done")
        except ApiError as error:
            outcomes.append(str(error.code))
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(NUM_CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == NUM_CALLERS
    return outcomes


both_databases = pytest.mark.parametrize("database_kind", ["sqlite", needs_postgres("postgresql")])


@both_databases
def test_a_hundred_concurrent_submissions_do_not_exceed_the_quota_of_queued_jobs(stack: LiveStack) -> None:
    organization = with_limits(stack.organization, queued_jobs=7)

    def submit() -> None:
        with as_tenant(organization.pk, None):
            job_submit(organization=organization, kind="training", params={})

    outcomes = call_concurrently(submit)

    assert (outcomes.count("done"), outcomes.count("queued_jobs_quota_exceeded")) == (7, 93)
    assert Job.objects.count() == 7


@both_databases
def test_a_hundred_concurrent_workers_do_not_exceed_the_quota_of_running_jobs(stack: LiveStack) -> None:
    organization = with_limits(stack.organization, running_jobs=3)
    for _ in range(10):
        job_submit(organization=organization, kind="training", params={})

    call_concurrently(lambda: job_claim_next(worker="worker"))

    assert Job.objects.filter(status="running").count() == 3


@pytest.mark.parametrize("database_kind", [needs_postgres("postgresql")])
def test_a_hundred_concurrent_uploads_do_not_exceed_the_quota_of_storage(stack: LiveStack) -> None:
    organization = with_limits(stack.organization, storage_bytes=55)  # enough for 5 files of 10 bytes

    def upload() -> None:
        with as_tenant(organization.pk, None):
            make_file(organization, b"x" * 10)

    outcomes = call_concurrently(upload)

    assert (outcomes.count("done"), outcomes.count("storage_quota_exceeded")) == (5, 95)
    assert File.objects.count() == 5
    assert len(list((stack.data_dir / "storage").rglob("file-*"))) == 5, "a refused upload must leave no bytes"


@both_databases
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"deployments": 4, "devices": 50}, "deployments_quota_exceeded"),
        ({"deployments": 50, "devices": 4}, "devices_quota_exceeded"),
    ],
    ids=["deployments", "devices"],
)
def test_of_a_hundred_concurrent_deployments_exactly_as_many_as_allowed_are_created(
    stack: LiveStack, limits: dict[str, int], code: str
) -> None:
    organization, model = with_limits(stack.organization, **limits), make_base_model()
    names = itertools.count(1)

    def create() -> None:
        with as_tenant(organization.pk, None):
            deployment_create(organization=organization, name=f"endpoint-{next(names)}", base_model=model)

    outcomes = call_concurrently(create)

    assert (outcomes.count("done"), outcomes.count(code)) == (4, 96)
    assert Deployment.objects.count() == 4


def test_the_limit_of_devices_counts_processes_that_run_or_are_being_stopped(db: None) -> None:
    organization = with_limits(make_organization(), devices=1)
    other = make_organization()
    first = deployment_create(organization=organization, name="first", base_model=make_base_model("m"))
    deployment_create(organization=other, name="first", base_model=make_base_model())  # has its own limit
    deployment_stop(deployment=first)
    with pytest.raises(ApiError, match="occupy 1 devices"):
        deployment_create(organization=organization, name="second", base_model=make_base_model())

    replica_ended(replica=make_replica(first))
    second = deployment_create(organization=organization, name="second", base_model=make_base_model())

    with pytest.raises(ApiError, match="occupy 1 devices"):
        deployment_start(deployment=first)
    with pytest.raises(ApiError, match="occupy 1 devices"):
        canary_create(deployment=second, speculator=make_speculator(second.base_model, organization))
    deployment_start(deployment=second)  # its own process does not count


def test_the_error_of_the_api_names_the_exceeded_quota(db: None) -> None:
    organization = with_limits(make_organization(), queued_jobs=1, storage_bytes=10_000)
    client, model = client_of(organization), make_base_model()
    file = make_file(organization, [chat_row(model=model.name)])
    body = {"input_file_id": file.pk, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert client.post("/v1/batches", body, content_type="application/json").status_code == 200

    response = client.post("/v1/batches", body, content_type="application/json")

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (
        429, "queued_jobs_quota_exceeded", "insufficient_quota",
    )  # fmt: skip
    assert response.headers["Retry-After"]
    assert response.headers["x-should-retry"] == "false"


def test_deleting_files_frees_storage(db: None) -> None:
    organization = with_limits(make_organization(), storage_bytes=10)
    client = client_of(organization)
    file = make_file(organization, b"x" * 10)
    with pytest.raises(ApiError, match="10 of 10 bytes"):
        make_file(organization, b"x")

    client.delete(f"/v1/files/{file.pk}")

    make_file(organization, b"x" * 10)


def test_an_organization_at_its_quota_does_not_limit_others(db: None) -> None:
    limited = with_limits(make_organization(), queued_jobs=0)
    with pytest.raises(ApiError):
        job_submit(organization=limited, kind="batch", params={})
    with across_tenants(Across.COMMAND):
        job_submit(organization=make_organization(), kind="batch", params={})


def test_jobs_that_continue_accepted_work_are_exempt_from_the_quota(db: None) -> None:
    limited = with_limits(make_organization(), queued_jobs=0)
    job_submit(organization=limited, kind="training", params={}, is_continuation=True)


def test_an_operator_sets_limits_in_the_console_and_removes_them_again(db: None) -> None:
    organization = make_organization()
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    form = {"organization": organization.pk, "queued_jobs": "0"}

    assert client.post(reverse("admin:tenancy_limits_add"), form).status_code == 302
    with pytest.raises(ApiError):
        job_submit(organization=organization, kind="batch", params={})
    change = reverse("admin:tenancy_limits_change", args=[quote(organization.pk)])
    assert client.get(change).status_code == 200
    assert client.post(change, {"queued_jobs": "", "running_jobs": "2"}).status_code == 302

    job_submit(organization=organization, kind="batch", params={})
    assert quota_of(organization.pk).running_jobs == 2
    assert list(AuditEvent.objects.values_list("action", "object_id")) == [("limits.set", organization.pk)] * 2
    assert "limits.set" in client.get(reverse("admin:audit_auditevent_changelist")).content.decode()
