"""The feed of events: every change of status is recorded as one event, and no reader misses an event.

An event gets its `number` when its row is created. It gets its `seq`, by which readers page, after the commit.
"""

import datetime as dt
import json
from collections.abc import AsyncIterator
from typing import Any, cast
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction
from django.test import AsyncClient, Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from control.core.api.errors import ApiError
from control.models.catalog.services import speculator_create, speculator_ready
from control.queue.jobs.services import job_cancel, job_claim, job_end_cancelled, job_submit
from control.serving.deployments.services import deployment_create, deployment_start, deployment_stop
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import api_key_revoke, project_create
from control.tenants.events import stream as stream_module
from control.tenants.events.models import Event
from control.tenants.events.services import RETENTION, event_record, events_number, events_prune
from control.tenants.events.stream import Pace, refuse_too_many, stream
from control.tenants.events.subscription import Subscription, subscription_of
from control.tenants.events.types import EVENT_TYPES
from control.workflows.batches.services import batch_cancel, batch_create
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.pipelines.services import pipeline_cancel
from tests.control.factories import chat_row, make_base_model, make_file, make_key
from tests.control.workflows.pipelines.helpers import make_pipeline

FAST = Pace(poll_seconds=0.01, heartbeat_seconds=0.03, max_seconds=30.0)


def record_event(organization: Organization, object_id: str = "batch_1", kind: str = "batch.completed") -> Event:
    with transaction.atomic():
        return event_record(organization_id=organization.pk, project_id=None, type=kind, object_id=object_id)


def numbered_events(organization: Organization) -> list[tuple[str, str]]:
    events_number(organization)
    return list(Event.objects.filter(organization=organization).order_by("seq").values_list("type", "object_id"))


def make_subscription(organization: Organization, **values: Any) -> Subscription:
    key, _ = make_key(organization)
    return Subscription(**{"organization": organization, "key": key, "after": 0, **values})


async def messages(source: AsyncIterator[bytes], count: int) -> list[bytes]:
    received: list[bytes] = []
    async for message in source:
        received.append(message)
        if len(received) == count:
            break
    return received


def event_ids(parts: list[bytes]) -> list[str]:
    return [line.removeprefix("id: ") for part in parts for line in part.decode().splitlines() if line.startswith("id")]


def test_every_transition_of_a_batch_and_its_job_is_recorded(organization: Organization) -> None:
    make_base_model("m")
    batch = batch_create(
        organization=organization,
        input_file=make_file(organization, [chat_row()]),
        endpoint="/v1/chat/completions",
    )
    batch_cancel(batch=batch)
    claim = job_claim(job_id=batch.job_id, worker="w")
    assert claim is not None
    job_end_cancelled(claim=claim)

    assert numbered_events(organization) == [
        ("job.queued", batch.job_id),
        ("batch.cancelling", batch.pk),
        ("job.cancel_requested", batch.job_id),
        ("job.running", batch.job_id),
        ("job.cancelled", batch.job_id),
    ]


def test_only_changes_of_a_deployments_state_are_recorded(organization: Organization) -> None:
    deployment = deployment_create(organization=organization, name="d", base_model=make_base_model())
    deployment_start(deployment=deployment)  # the deployment is already starting
    deployment_stop(deployment=deployment)
    deployment_stop(deployment=deployment)

    assert numbered_events(organization) == [
        ("deployment.provisioning", deployment.pk),
        ("deployment.stopping", deployment.pk),
    ]


def test_the_cancellation_of_a_fine_tuning_job_is_recorded_with_openais_event_type(organization: Organization) -> None:
    pipeline = make_pipeline(organization)
    job = FineTuningJob.objects.create(
        organization=organization, pipeline=pipeline, training_file=pipeline.prompts_file
    )
    pipeline_cancel(pipeline=make_pipeline(organization))
    pipeline_cancel(pipeline=pipeline)

    cancellations = [
        entry for entry in numbered_events(organization) if entry[0].startswith(("fine_tuning.", "pipeline.c"))
    ]
    # The other pipeline, which belongs to no fine-tuning job, has only one event.
    assert cancellations[1:] == [("pipeline.cancelled", pipeline.pk), ("fine_tuning.job.cancelled", job.pk)]
    assert cancellations[0][0] == "pipeline.cancelled"


def test_a_speculator_that_becomes_ready_is_recorded_once(organization: Organization) -> None:
    model = make_base_model()
    speculator = speculator_create(organization=organization, base_model=model, name="s", kind="medusa")
    for _ in range(2):
        speculator_ready(speculator=speculator, storage_prefix="x", training={})

    assert numbered_events(organization) == [("speculator.ready", speculator.pk)]


def test_a_refused_transition_is_not_recorded(organization: Organization) -> None:
    job = job_submit(organization=organization, kind="training", params={})
    assert job_cancel(job=job)
    assert not job_cancel(job=job)

    assert [kind for kind, _ in numbered_events(organization)] == ["job.queued", "job.cancel_requested"]


def test_all_recorded_event_types_are_declared_and_no_type_is_declared_twice(organization: Organization) -> None:
    job_submit(organization=organization, kind="training", params={})

    assert set(Event.objects.values_list("type", flat=True)) <= set(EVENT_TYPES)
    assert len(EVENT_TYPES) == len(set(EVENT_TYPES))


def test_an_event_cannot_be_written_outside_of_a_transaction(organization: Organization) -> None:
    with patch.object(transaction.get_connection(), "in_atomic_block", False), pytest.raises(AssertionError):
        event_record(organization_id=organization.pk, project_id=None, type="batch.completed", object_id="batch_1")


def test_events_of_each_organization_are_numbered_without_gaps(
    organization: Organization, other_organization: Organization
) -> None:
    for owner in (organization, other_organization, organization, organization):
        record_event(owner)
        events_number(owner)
        events_number(owner)

    seqs = Event.objects.filter(organization=organization).order_by("number").values_list("seq", flat=True)
    assert list(seqs) == [1, 2, 3]


def test_many_events_are_numbered_by_few_statements_and_in_short_transactions(
    organization: Organization, other_organization: Organization
) -> None:
    """When an organization reads its feed for the first time, all its events still lack a `seq`."""
    events = [Event(organization=organization, type="batch.completed", object_id=f"{n}") for n in range(2_200)]
    Event.objects.bulk_create(events)
    record_event(other_organization)

    with CaptureQueriesContext(connection) as queries:
        events_number(organization)

    assert len(queries) <= 100
    num_transactions = sum(query["sql"].startswith("SAVEPOINT") for query in queries)
    assert num_transactions >= 5, "a transaction numbers at most 500 events"
    numbered = Event.objects.filter(organization=organization).order_by("seq").values_list("seq", "object_id")
    assert list(numbered) == [(n + 1, f"{n}") for n in range(2_200)]


def test_an_event_that_is_committed_late_is_numbered_after_events_already_read(organization: Organization) -> None:
    """The event that is created first but committed last has the smaller `number` and the larger `seq`."""
    committed_last = record_event(organization, "late")
    Event.objects.filter(pk=committed_last.pk).delete()  # the row is invisible until its transaction is committed
    committed_first = record_event(organization, "early")
    events_number(organization)
    Event.objects.create(
        number=committed_last.number,
        id=committed_last.id,
        organization=organization,
        type=committed_last.type,
        object_id=committed_last.object_id,
    )

    assert [name for _, name in numbered_events(organization)] == ["early", "late"]
    assert committed_first.number > committed_last.number


def test_the_list_is_paged_in_both_orders_and_can_be_filtered(client: Client, organization: Organization) -> None:
    events = [record_event(organization, f"batch_{number}") for number in range(3)]
    record_event(organization, "job_1", "job.failed")

    newest = client.get("/v1/events?limit=1").json()
    assert (newest["data"][0]["type"], newest["has_more"]) == ("job.failed", True)
    page = client.get(f"/v1/events?order=asc&after={events[0].id}&limit=2").json()
    assert [event["data"]["id"] for event in page["data"]] == ["batch_1", "batch_2"]
    assert [event["type"] for event in client.get("/v1/events?types=job.*").json()["data"]] == ["job.failed"]
    assert [event["id"] for event in client.get("/v1/events?object_id=batch_1").json()["data"]] == [events[1].id]
    assert client.get("/v1/events?types=job.vanished").json()["error"]["param"] == "types"
    assert client.get(f"/v1/events/{events[0].id}").json()["data"] == {"id": "batch_0"}


def test_events_of_another_organization_are_not_shown(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    foreign_event = record_event(other_organization)
    events_number(other_organization)

    assert client.get("/v1/events").json()["data"] == []
    assert client.get(f"/v1/events/{foreign_event.id}").status_code == 404
    assert client.get(f"/v1/events?after={foreign_event.id}").status_code == 400
    resumed = client.get("/v1/events", headers={"Accept": "text/event-stream", "Last-Event-ID": foreign_event.id})
    assert resumed.status_code == 404


def test_old_events_are_deleted_and_the_numbering_continues(organization: Organization) -> None:
    for _ in range(3):
        record_event(organization)
    events_number(organization)
    Event.objects.update(created_at=timezone.now() - RETENTION - dt.timedelta(seconds=1))

    assert events_prune() == 2  # the latest event remains, because the numbering continues from it
    assert events_prune() == 0
    assert record_event(organization).pk
    events_number(organization)
    assert list(Event.objects.order_by("seq").values_list("seq", flat=True)) == [3, 4]


def test_old_events_that_nobody_has_read_are_deleted(organization: Organization) -> None:
    old, recent = record_event(organization, "old"), record_event(organization, "recent")
    Event.objects.filter(pk=old.pk).update(created_at=timezone.now() - RETENTION - dt.timedelta(seconds=1))

    assert events_prune() == 1
    assert Event.objects.get() == recent
    assert recent.seq is None


def test_a_stream_sends_each_event_once_with_its_id(organization: Organization) -> None:
    events = [record_event(organization, f"batch_{number}") for number in range(2)]

    async def watch() -> list[bytes]:
        source = stream(subscription, FAST)
        first = await messages(source, 3)
        events.append(await sync_to_async(record_event)(organization, "batch_2"))
        return first + await messages(source, 1)

    subscription = make_subscription(organization)
    parts = async_to_sync(watch)()

    assert parts[0] == b"retry: 2000\n\n"
    assert event_ids(parts) == [event.id for event in events]
    name, kind, data = parts[1].decode().splitlines()[:3]
    assert (name, kind) == (f"id: {events[0].id}", "event: batch.completed")
    assert json.loads(data.removeprefix("data: "))["data"] == {"id": "batch_0"}


def test_a_stream_for_the_key_of_a_project_sends_events_of_the_project_only(organization: Organization) -> None:
    project = project_create(organization=organization, name="own")
    record_event(organization)
    with transaction.atomic():
        own = event_record(
            organization_id=organization.pk, project_id=project.pk, type="batch.completed", object_id="batch_2"
        )
    key, _ = make_key(organization, project=project)

    async def watch() -> list[bytes]:
        return await messages(stream(subscription, FAST), 2)

    subscription = make_subscription(organization, key=key)
    assert event_ids(async_to_sync(watch)()) == [own.id]


def test_a_stream_without_events_sends_heartbeats(organization: Organization) -> None:
    async def watch() -> list[bytes]:
        return await messages(stream(subscription, FAST), 2)

    subscription = make_subscription(organization)
    assert async_to_sync(watch)()[1] == b":\n\n"


def test_a_stream_ends_when_its_key_is_revoked_and_when_its_time_is_over(organization: Organization) -> None:
    async def watch(pace: Pace) -> list[bytes]:
        return await messages(stream(subscription, pace), 100)

    subscription = make_subscription(organization)
    brief = Pace(poll_seconds=0.01, heartbeat_seconds=9.0, max_seconds=0.05)
    assert async_to_sync(watch)(brief) == [b"retry: 2000\n\n"]

    api_key_revoke(key=subscription.key)
    assert async_to_sync(watch)(FAST) == [b"retry: 2000\n\n"]


def test_the_number_of_streams_is_limited_and_ended_streams_do_not_count(organization: Organization) -> None:
    async def watch() -> int:
        sources = [stream(subscription, FAST) for _ in range(stream_module.MAX_STREAMS)]
        for source in sources:
            await anext(source)
        with pytest.raises(ApiError, match="open event streams"):
            refuse_too_many(organization.pk)
        for source in sources:
            await source.aclose()
        refuse_too_many(organization.pk)
        return len(sources)

    subscription = make_subscription(organization)
    assert async_to_sync(watch)() == stream_module.MAX_STREAMS


def test_a_client_that_reconnects_continues_after_its_last_event(organization: Organization) -> None:
    events = [record_event(organization, f"batch_{number}") for number in range(3)]
    _, token = make_key(organization)

    async def watch() -> tuple[str, list[bytes]]:
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "text/event-stream",
            "Last-Event-ID": events[0].id,
        }
        response = await AsyncClient().get("/v1/events", headers=headers)
        return response.headers["Content-Type"], await messages(aiter(cast(Any, response).streaming_content), 3)

    content_type, parts = async_to_sync(watch)()

    assert content_type == "text/event-stream"
    assert event_ids(parts) == [event.id for event in events[1:]]


@pytest.mark.parametrize("query", [{"after": "evt\0"}, {"object_id": "batch\0"}, {"types": "batch.*,\0"}])
def test_a_feed_whose_filter_has_a_zero_byte_is_refused(organization: Organization, query: dict[str, str]) -> None:
    key, _ = make_key(organization)
    with pytest.raises(ApiError) as refused:
        subscription_of(RequestFactory().get("/v1/events", query), key)
    assert (refused.value.status, refused.value.param) == (400, next(iter(query)))


def test_the_route_of_a_deployments_events_lists_only_events_of_that_deployment(
    client: Client, organization: Organization
) -> None:
    model = make_base_model()
    deployment = deployment_create(organization=organization, name="d", base_model=model)
    deployment_create(organization=organization, name="other", base_model=model)
    deployment_stop(deployment=deployment)

    events = client.get(f"/v1/deployments/{deployment.pk}/events").json()["data"]

    assert [event["type"] for event in events] == ["deployment.stopping", "deployment.provisioning"]
    assert {event["data"]["id"] for event in events} == {deployment.pk}


def test_old_events_are_deleted_whether_or_not_they_have_a_seq_and_the_numbering_continues(
    organization: Organization, other_organization: Organization
) -> None:
    for _ in range(3):
        event_record(organization_id=organization.pk, project_id=None, type="job.queued", object_id="job")
        event_record(organization_id=other_organization.pk, project_id=None, type="job.queued", object_id="job")
    events_number(other_organization)
    event_record(organization_id=other_organization.pk, project_id=None, type="job.queued", object_id="unread")
    Event.objects.update(created_at=timezone.now() - RETENTION - dt.timedelta(seconds=1))

    events_prune()

    assert not Event.objects.filter(organization=organization).exists()
    event_record(organization_id=other_organization.pk, project_id=None, type="job.queued", object_id="new")
    events_number(other_organization)
    assert Event.objects.get(object_id="new").seq == 4
