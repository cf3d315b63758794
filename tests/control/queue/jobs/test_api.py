"""The routes of /v1/jobs."""

import pytest
from django.test import Client

from control.queue.jobs.models import Job
from control.queue.jobs.services import job_fail, job_progress
from control.tenants.accounts.models import Organization
from tests.control.factories import client_of
from tests.control.queue.jobs.helpers import INFRA, claim, submit

pytestmark = pytest.mark.django_db


def test_a_job_shows_its_status(client: Client, organization: Organization) -> None:
    job = submit(organization=organization)
    job_progress(claim=claim(job), done=3, total=16, unit="rows")
    body = client.get(f"/v1/jobs/{job.pk}").json()
    assert (body["id"], body["object"], body["kind"]) == (job.pk, "job", "batch")
    assert (body["status"], body["attempt"]) == ("running", 1)
    assert body["progress"] == {"done": 3, "total": 16, "unit": "rows"}
    assert body["finished_at"] is None


def test_stored_json_of_an_unknown_shape_is_returned_unchanged(client: Client, organization: Organization) -> None:
    stored = {"paused": {"reason": "cap"}, "error": {"text": "boom"}, "result": [1], "metrics": {"loss": "nan"}}
    job = submit(organization=organization)
    Job.objects.filter(pk=job.pk).update(**stored)

    body = client.get(f"/v1/jobs/{job.pk}").json()

    assert {name: body[name] for name in stored} == stored
    assert client.get("/v1/jobs").json()["data"] == [body]


def test_jobs_are_listed_newest_first(client: Client, organization: Organization) -> None:
    jobs = [submit(organization=organization).pk for _ in range(3)]
    page = client.get("/v1/jobs?limit=2").json()
    assert [job["id"] for job in page["data"]] == sorted(jobs, reverse=True)[:2]
    assert page["has_more"] is True


def test_events_list_the_history_and_continue_after_a_given_event(client: Client, organization: Organization) -> None:
    job = submit(organization=organization)
    job_fail(claim=claim(job), failure=INFRA)
    page = client.get(f"/v1/jobs/{job.pk}/events").json()
    assert [event["type"] for event in page["data"]] == ["queued", "claimed", "retried"]
    later = client.get(f"/v1/jobs/{job.pk}/events?after={page['data'][1]['id']}").json()
    assert [event["data"]["code"] for event in later["data"]] == ["worker_crashed"]


def test_the_error_names_an_invalid_after_parameter(client: Client, organization: Organization) -> None:
    job = submit(organization=organization)
    response = client.get(f"/v1/jobs/{job.pk}/events?after=x")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "after")


def test_cancelling_a_job_twice_is_accepted_and_recorded_once(client: Client, organization: Organization) -> None:
    job = submit(organization=organization)
    responses = [client.post(f"/v1/jobs/{job.pk}/cancel") for _ in range(2)]
    assert [response.status_code for response in responses] == [202, 202]
    assert responses[0].json()["cancel_requested_at"] is not None
    assert Job.objects.get(pk=job.pk).events.filter(type="cancel_requested").count() == 1


@pytest.mark.parametrize(("method", "path"), [("get", ""), ("get", "/events"), ("post", "/cancel")])
def test_another_organizations_job_is_not_found(
    client: Client, other_organization: Organization, method: str, path: str
) -> None:
    job = submit(organization=other_organization)
    assert getattr(client, method)(f"/v1/jobs/{job.pk}{path}").status_code == 404
    assert client.get("/v1/jobs").json()["data"] == []
    assert Job.objects.get(pk=job.pk).cancel_requested_at is None
    assert client_of(other_organization).get(f"/v1/jobs/{job.pk}").status_code == 200


def test_without_a_key_jobs_are_not_shown() -> None:
    assert Client().get("/v1/jobs").status_code == 401
