"""Spend caps and quotes in the console."""

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from control.billing.spending.models import SpendCap
from control.billing.thresholds.models import Threshold
from control.billing.thresholds.services import thresholds_set
from control.billing.usage.services import Tokens
from control.queue.jobs.models import Job
from control.tenants.administration.services import project_create
from control.tenants.audit.models import AuditEvent
from control.tenants.authentication.caller import Caller
from control.workflows.batches.caps import batch_cap_reached, batch_pause
from tests.control.billing.spending.support import make_quote
from tests.control.factories import add_usage, make_base_model, make_organization
from tests.control.operations.console.support import change_path, operator_client, page, press
from tests.control.operations.console.test_members import sign_in
from tests.control.queue.jobs.helpers import claim
from tests.control.workflows.batches.helpers import make_batch

pytestmark = pytest.mark.django_db
ADD = "/admin/spending/spendcap/add/"


@pytest.fixture
def operator() -> Client:
    return operator_client()


@pytest.mark.parametrize("nanousd", [1_234_567_000_000, 2_500_000_000_000_000, 1])
def test_saving_a_spend_cap_unedited_keeps_its_amount(operator: Client, nanousd: int) -> None:
    cap = SpendCap.objects.create(organization=make_organization(), nanousd=nanousd)
    url = change_path("spending_spendcap", cap.pk)
    field = re.search(r'name="usd" value="([^"]*)"', page(operator, url))
    assert field is not None

    assert operator.post(url, {"usd": field[1]}).status_code == 302

    cap.refresh_from_db()
    assert cap.nanousd == nanousd


def test_an_operator_can_create_raise_and_delete_a_spend_cap(operator: Client) -> None:
    organization = make_organization()

    operator.post(ADD, {"organization": organization.pk, "project": "", "usd": "0"})
    cap = SpendCap.objects.get()
    batch = make_batch(organization)
    reached = batch_cap_reached(batch)
    assert reached is not None
    batch_pause(batch=batch, claim=claim(batch.job), reached=reached)
    assert batch.pk in page(operator, change_path("spending_spendcap", cap.pk))
    assert "USD this month, all projects" in page(operator, change_path("accounts_organization", organization.pk))
    assert "its cap for this month is 0 USD" in page(operator, change_path("batches_batch", batch.pk))
    assert "paused" in page(operator, change_path("jobs_job", batch.job_id))

    operator.post(change_path("spending_spendcap", cap.pk), {"usd": "12.5"})
    cap.refresh_from_db()
    assert (cap.nanousd, Job.objects.get().status) == (12_500_000_000, "queued")
    press(operator, "spending_spendcap", cap.pk, "remove")
    assert not SpendCap.objects.exists()
    actions = AuditEvent.objects.order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["spend_cap.create", "spend_cap.update", "spend_cap.delete"]


def test_a_cap_for_a_project_of_another_organization_is_refused(operator: Client) -> None:
    organization, other = make_organization(), make_organization()
    project = project_create(organization=other, name="theirs")

    refused = operator.post(ADD, {"organization": organization.pk, "project": project.pk, "usd": "1"})

    assert "belongs to another organization" in refused.content.decode()
    assert not SpendCap.objects.exists()


def test_a_quotes_page_shows_its_cap(operator: Client) -> None:
    quote = make_quote(make_organization(), make_base_model(), cap_nanousd=1_250_000_000)

    assert "1.25" in page(operator, change_path("quotes_quote", quote.pk))


def test_an_organizations_page_links_to_the_files_of_its_invoices(operator: Client) -> None:
    organization = make_organization()
    add_usage(Caller(organization_id=organization.pk), tokens=Tokens(input=7))
    links = re.findall(r'href="([^"]*\.csv)"', page(operator, change_path("accounts_organization", organization.pk)))
    assert len(links) == 1, "the organization has existed since this month"

    response: Any = operator.get(links[0])

    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert b",input_token,7," in b"".join(response.streaming_content)
    assert operator.get(links[0].replace(organization.pk, "org_1")).status_code == 404


def test_members_can_download_only_the_invoices_of_their_organization() -> None:
    own = make_organization()
    client = sign_in(own, "billing")
    for organization, status in ((own, 200), (make_organization(), 404)):
        path = reverse("organization-invoice", args=[organization.pk, "2026-10"])
        assert client.get(path).status_code == status


def test_an_organizations_page_shows_its_thresholds(operator: Client) -> None:
    organization = make_organization()
    thresholds_set(organization=organization, project=None, values=[(Threshold.Unit.PERCENT, 80)])

    text = page(operator, change_path("accounts_organization", organization.pk))

    assert "threshold of all projects" in text
    assert "80 % of the cap" in text
