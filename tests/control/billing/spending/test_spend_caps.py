"""When the spend cap of an organization, project or quote is reached, batches are paused and requests are refused."""

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from control.billing.spending.models import SpendCap
from control.billing.spending.selectors import cap_reached
from control.billing.usage.services import Tokens, price_set
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import project_create
from control.tenants.authentication.caller import Caller
from control.tenants.events.models import Event
from control.workflows.batches.caps import batch_cap_reached, batch_pause, batches_review
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_cancel
from tests.control.billing.spending.support import make_quote
from tests.control.factories import add_usage, client_of, make_base_model, make_key
from tests.control.queue.jobs.helpers import claim
from tests.control.workflows.batches.helpers import make_batch

DOLLAR = 10**9  # in nanodollars


@pytest.fixture(autouse=True)
def _price(db: None) -> None:
    """A token costs a dollar, in batches as well."""
    price_set(base_model_id="", input_nanousd=DOLLAR, output_nanousd=DOLLAR, batch_percent=100)


def spend(organization: Organization, dollars: int, **values: Any) -> None:
    at = values.pop("at", None)
    caller = Caller(organization_id=organization.pk, **values)
    add_usage(caller, tokens=Tokens(input=dollars), is_batch=True, at=at)


def pause(batch: Batch) -> None:
    reached = batch_cap_reached(batch)
    assert reached is not None
    batch_pause(batch=batch, claim=claim(batch.job), reached=reached)


def status_of(batch: Batch) -> str:
    return Job.objects.get(pk=batch.job_id).status


def test_a_job_whose_cancellation_was_requested_is_not_paused(organization: Organization) -> None:
    """The cancellation was requested while a worker ran the job, and the worker has not noticed the request yet."""
    SpendCap.objects.create(organization=organization, nanousd=0)
    batch = make_batch(organization)
    running_claim = claim(batch.job)
    batch_cancel(batch=batch)
    reached = batch_cap_reached(batch)
    assert reached is not None

    assert not batch_pause(batch=batch, claim=running_claim, reached=reached)

    assert status_of(batch) == Job.Status.RUNNING
    assert not Event.objects.filter(type="batch.paused").exists()


def test_a_wrong_clock_of_a_worker_does_not_resume_paused_jobs(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    SpendCap.objects.create(organization=organization, nanousd=0)
    batch = make_batch(organization)
    pause(batch)
    wrong_time = timezone.now() + dt.timedelta(days=2)  # after the end of the completion window
    monkeypatch.setattr("django.utils.timezone.now", lambda: wrong_time)

    batches_review()

    assert status_of(batch) == Job.Status.PAUSED


def test_a_cap_can_be_created_changed_and_deleted(client: Client, organization: Organization) -> None:
    spend(organization, 2)
    spend(organization, 50, at=timezone.now() - dt.timedelta(days=40))  # caps limit the spending of a month

    made = client.post("/v1/spend_caps", {"amount": 2.5}, content_type="application/json")
    assert made.status_code == 201, made.content
    cap = made.json()
    assert (cap["amount"]["value"], cap["spent"]["value"], cap["is_reached"]) == (2.5, 2.0, False)
    assert client.post("/v1/spend_caps", {"amount": 1}, content_type="application/json").status_code == 409

    path = f"/v1/spend_caps/{cap['id']}"
    changed = client.patch(path, {"amount": 2}, content_type="application/json").json()
    assert changed["is_reached"]
    assert client.get("/v1/spend_caps").json()["data"] == [changed]
    assert client.delete(path).json()["deleted"]
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("amount", [-1, "x", None, 1e12, 1e-12, "NaN", [1], True])
def test_an_invalid_amount_is_refused(client: Client, amount: object) -> None:
    response = client.post("/v1/spend_caps", {"amount": amount}, content_type="application/json")

    assert (response.status_code, response.json()["error"]["param"]) == (400, "amount")


def test_the_cap_of_a_project_counts_and_limits_only_that_project(organization: Organization) -> None:
    project, other = (project_create(organization=organization, name=name) for name in ("a", "b"))
    SpendCap.objects.create(organization=organization, project=project, nanousd=3 * DOLLAR)
    spend(organization, 100)
    spend(organization, 2, project_id=project.pk)

    assert cap_reached(Caller(organization_id=organization.pk, project_id=project.pk)) is None
    spend(organization, 1, project_id=project.pk)
    assert cap_reached(Caller(organization_id=organization.pk, project_id=project.pk)) is not None
    assert cap_reached(Caller(organization_id=organization.pk, project_id=other.pk)) is None
    assert cap_reached(Caller(organization_id=organization.pk)) is None


def test_spending_of_another_organization_does_not_count_towards_a_cap(
    organization: Organization, other_organization: Organization
) -> None:
    SpendCap.objects.create(organization=organization, nanousd=DOLLAR)
    spend(other_organization, 5)

    assert cap_reached(Caller(organization_id=organization.pk)) is None
    assert cap_reached(Caller(organization_id=other_organization.pk)) is None


def test_a_paused_batch_shows_its_pause_and_resumes_when_the_cap_is_raised(
    client: Client, organization: Organization
) -> None:
    cap = SpendCap.objects.create(organization=organization, nanousd=0)
    batch = make_batch(organization)
    pause(batch)

    body = client.get(f"/v1/batches/{batch.pk}").json()
    assert body["paused"]["code"] == "spend_cap_reached"
    assert body["paused"]["cap_id"] == cap.pk
    job = client.get(f"/v1/jobs/{batch.job_id}").json()
    assert (job["status"], job["paused"]) == ("paused", body["paused"])
    batches_review()
    assert status_of(batch) == "paused", "nothing has changed"

    client.patch(f"/v1/spend_caps/{cap.pk}", {"amount": 1}, content_type="application/json")
    assert status_of(batch) == "queued"
    assert client.get(f"/v1/batches/{batch.pk}").json()["paused"] is None
    types = [event["type"] for event in client.get("/v1/events?order=asc").json()["data"]]
    assert [name for name in types if "pause" in name or "resume" in name] == [
        "job.paused", "batch.paused", "job.resumed", "batch.resumed",
    ]  # fmt: skip


def test_a_batch_stays_paused_until_its_quote_and_its_organization_both_allow_spending(
    client: Client, organization: Organization
) -> None:
    quote = make_quote(organization, make_base_model("m"), cap_nanousd=0)
    cap = SpendCap.objects.create(organization=organization, nanousd=0)
    batch = make_batch(organization, quote=quote)
    pause(batch)

    body = client.patch(f"/v1/quotes/{quote.pk}", {"cap": None}, content_type="application/json").json()
    assert (body["cap"], status_of(batch)) == (None, "paused")
    client.delete(f"/v1/spend_caps/{cap.pk}")
    assert status_of(batch) == "queued"


def test_a_job_paused_by_a_cap_is_queued_again_when_its_completion_window_ends(organization: Organization) -> None:
    SpendCap.objects.create(organization=organization, nanousd=0)
    batch = make_batch(organization)
    pause(batch)
    Batch.objects.filter(pk=batch.pk).update(expires_at=timezone.now())

    batches_review()

    assert status_of(batch) == "queued"


def test_the_cap_of_another_organizations_quote_cannot_be_changed(
    client: Client, other_organization: Organization
) -> None:
    quote = make_quote(other_organization, make_base_model("m"), cap_nanousd=0)
    patched = client.patch(f"/v1/quotes/{quote.pk}", {"cap": 5}, content_type="application/json")

    assert patched.status_code == 404
    quote.refresh_from_db()
    assert quote.cap_nanousd == 0


def test_requests_of_an_organization_that_has_reached_its_cap_are_refused(
    organization: Organization,
) -> None:
    SpendCap.objects.create(organization=organization, nanousd=0)
    project = project_create(organization=organization, name="p")
    _, token = make_key(organization, project=project)
    for client in (client_of(organization), Client(headers={"Authorization": f"Bearer {token}"})):
        body = {"model": "none", "messages": [{"role": "user", "content": "x"}]}
        response = client.post("/v1/chat/completions", body, content_type="application/json")
        assert (response.status_code, response.json()["error"]["code"]) == (429, "spend_cap_reached")
        assert response.json()["error"]["type"] == "insufficient_quota"
        assert response["x-should-retry"] == "false"
