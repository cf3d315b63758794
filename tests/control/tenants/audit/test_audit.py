"""Promise S13 of docs/reliability.md: each change commits with exactly one audit event, which cannot be altered."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.test import Client
from django.urls import reverse

from control.core.storage.staging import staged_writer
from control.data.uploads.services import part_add
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_stop
from control.serving.gateway.wire import WIRES
from control.tenants.accounts.models import ApiKey, Organization, User
from control.tenants.audit.models import AuditEvent
from control.workflows.batches.assemble import batch_assemble
from control.workflows.batches.services import batch_validate
from control.workflows.fine_tuning.services import fine_tuning_job_pause
from control.workflows.pipelines.services import pipeline_cancel
from tests.control.calls import call, path_of
from tests.control.factories import client_of, make_file, make_organization
from tests.control.routes import Route, api_routes
from tests.control.world import World

pytestmark = pytest.mark.django_db

# The test of all operations leaves out the routes in `EXCHANGES`, because they need the files of a speculator. Their
# events are tested in tests/control/workflows/speculators. The test also leaves out the routes in `WIRES`, because they
# only send prompts to an engine and change no row that is audited.
EXCHANGES = (
    "/v1/speculators",
    "/v1/speculators/{speculator_id}/archive",
    "/v1/speculators/{speculator_id}/export",
)
OPERATIONS = [
    pytest.param(route, method, id=f"{method} {route.path}")
    for route in api_routes()
    for method in route.methods
    if method != "GET" and route.path not in (*WIRES, *EXCHANGES)
]


def add_part(world: World) -> dict[str, Any]:
    with staged_writer() as writer:
        writer.write(b"four")
        return {"part_ids": [part_add(upload=world.upload, staged=writer.finish()).pk]}


def cancel_pipeline(world: World) -> None:
    pipeline_cancel(pipeline=world.pipeline)


def end_batch(world: World) -> None:
    batch_validate(batch=world.batch)
    batch_assemble(batch=world.batch, final="failed")


def end_batch_with_unfinished_rows(world: World) -> dict[str, Any]:
    end_batch(world)
    return {"rows": ["unfinished"]}


def pause_fine_tuning(world: World) -> None:
    fine_tuning_job_pause(job=world.fine_tuning_job)


def end_fine_tuning(world: World) -> None:
    Job.objects.filter(pk=world.fine_tuning_job.job_id).update(status=Job.Status.SUCCEEDED)


def serve_deployment(world: World) -> None:
    Deployment.objects.filter(pk=world.deployment.pk).update(state=Deployment.State.READY)


def stop_deployment(world: World) -> None:
    deployment_stop(deployment=world.deployment)


# Functions that prepare the operation so that it succeeds. If a function returns a body, the request sends that body.
PREPARATIONS: Mapping[str, Callable[[World], dict[str, Any] | None]] = {
    "POST /v1/uploads/{upload_id}/complete": add_part,
    "POST /v1/pipelines/{pipeline_id}/resume": cancel_pipeline,
    "POST /v1/batches/{batch_id}/resume": end_batch,
    "POST /v1/batches/{batch_id}/repair": end_batch_with_unfinished_rows,
    "POST /v1/fine_tuning/jobs/{job_id}/resume": pause_fine_tuning,
    "DELETE /v1/fine_tuning/jobs/{job_id}/checkpoints/{checkpoint_id}": end_fine_tuning,
    "POST /v1/deployments/{deployment_id}/start": stop_deployment,
    "POST /v1/deployments/{deployment_id}/rollouts": serve_deployment,
}


@pytest.mark.parametrize(("route", "method"), OPERATIONS)
def test_every_operation_that_changes_something_records_exactly_one_event(
    route: Route, method: str, organization: Organization, client: Client
) -> None:
    world = World(organization)
    key = ApiKey.objects.get()

    prepare = PREPARATIONS.get(f"{method} {route.path}")
    body = None if prepare is None else prepare(world)

    response = call(client, world, method, route, path_of(route, world), body)

    assert response.status_code < 300, response.content
    event = AuditEvent.objects.get()
    assert (event.organization, event.actor_type, event.actor_id) == (organization, "api_key", key.pk)
    assert (event.ip, event.request_id) == ("127.0.0.1", response.headers["x-request-id"])
    assert event.object_id in f"{response.wsgi_request.path} {response.content.decode()}"


def test_refused_requests_and_reads_record_no_event(client: Client, organization: Organization) -> None:
    file = make_file(organization)
    client.get(f"/v1/files/{file.pk}")
    client.delete("/v1/files/file-none")
    client.post("/v1/deployments", {"name": "x", "model": "none"}, content_type="application/json")
    client.post(f"/v1/jobs/{World(organization).job.pk}/cancel")  # the only request that changes something
    client.post(f"/v1/jobs/{World(organization).job.pk}x/cancel")

    assert list(AuditEvent.objects.values_list("action", flat=True)) == ["job.cancel"]


def test_a_repeated_request_with_one_idempotency_key_records_one_event(
    client: Client, organization: Organization
) -> None:
    for _ in range(2):
        headers = {"Idempotency-Key": "once"}
        client.post("/v1/projects", {"name": "new"}, content_type="application/json", headers=headers)
    assert AuditEvent.objects.get().action == "project.create"


def test_a_change_is_rolled_back_if_its_event_cannot_be_recorded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise DatabaseError("no")

    monkeypatch.setattr("control.tenants.audit.record.AuditEvent.objects.create", fail)

    response = client.post("/v1/projects", {"name": "new"}, content_type="application/json")

    assert response.status_code == 500
    assert client.get("/v1/projects").json()["data"] == []


def test_the_event_of_an_operators_action_names_the_operator(organization: Organization) -> None:
    operator = User.objects.create_superuser("root", password="x" * 12)
    client = Client()
    client.force_login(operator)

    client.post(reverse("admin:accounts_organization_add"), {"name": "made in the console"})

    event = AuditEvent.objects.get()
    made = Organization.objects.get(name="made in the console")
    assert (event.actor_type, event.actor_id, event.action) == ("user", "root", "organization.create")
    assert (event.organization, event.object_id) == (made, made.pk)


def test_changes_outside_of_a_request_record_no_event(organization: Organization) -> None:
    """Workers, for example, record no audit events."""
    World(organization).ids_of_all_objects()
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize(
    "change",
    [lambda events: events.update(action="nothing"), lambda events: events._raw_delete(events.db)],
    ids=["update", "delete"],
)
def test_the_database_refuses_to_change_or_delete_an_audit_event(
    client: Client, change: Callable[[Any], object]
) -> None:
    client.post("/v1/projects", {"name": "new"}, content_type="application/json")
    events = AuditEvent.objects.all()
    before = events.values().get()

    with pytest.raises(DatabaseError, match="only ever added"), transaction.atomic():
        change(events)

    assert events.values().get() == before


def test_an_organization_reads_its_own_events_newest_first(client: Client, organization: Organization) -> None:
    for name in ("first", "second"):
        client.post("/v1/projects", {"name": name}, content_type="application/json")
    client_of(make_organization()).post("/v1/projects", {"name": "foreign"}, content_type="application/json")

    events = client.get("/v1/audit_events").json()["data"]

    assert [event["action"] for event in events] == ["project.create"] * 2
    assert events[0]["id"] > events[1]["id"]
    assert events[0]["actor"] == {"type": "api_key", "id": ApiKey.objects.filter(organization=organization).get().pk}
