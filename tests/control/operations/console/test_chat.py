"""The chat on a deployment's page: who may send messages, and what becomes of a message that cannot be answered."""

import json
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from control.billing.ledger.models import LedgerLine
from control.billing.spending.models import SpendCap
from control.billing.usage.models import MonthlySpend, UsageRecord
from control.billing.usage.services import price_set
from control.operations.console.chat import CHAT_PATH, ORGANIZATION_HEADER
from control.serving.deployments.models import Deployment
from control.serving.deployments.states import State
from control.tenants.accounts.models import Member, Organization, User
from control.tenants.quotas.models import Limits
from tests.control.factories import make_base_model
from tests.control.operations.console.support import change_path, operator_client, page
from tests.control.operations.console.test_members import sign_in
from tests.control.serving.deployments.support import make_deployment, make_replica
from tests.control.serving.gateway.conftest import caller as caller
from tests.control.serving.gateway.conftest import deployment as deployment
from tests.control.serving.gateway.conftest import supervisor as supervisor

pytestmark = pytest.mark.django_db
TABLE = "deployments_deployment"


def send(client: Client, model: str = "fast", **values: Any) -> HttpResponse:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]} | values
    response = client.post(CHAT_PATH, json.dumps(body), content_type="application/json")
    assert isinstance(response, HttpResponse)
    return response


def error_of(response: Any) -> tuple[int, str]:
    return response.status_code, json.loads(response.content)["error"]["code"]


def make_stopped(organization: Organization) -> Deployment:
    """Makes a deployment that refuses every request. An accepted message gets the error `deployment_stopped`."""
    row = make_deployment(make_base_model(), organization, "fast")
    Deployment.objects.filter(pk=row.pk).update(state=State.STOPPED, desired_state=Deployment.Desired.STOPPED)
    return row


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("owner", (503, "deployment_stopped")),
        ("member", (503, "deployment_stopped")),
        ("read_only", (403, "insufficient_scope")),
        ("billing", (403, "insufficient_scope")),
    ],
)
def test_only_roles_that_may_send_requests_get_the_chat_and_an_answer(
    organization: Organization, role: str, expected: tuple[int, str]
) -> None:
    row = make_stopped(organization)
    client = sign_in(organization, role)

    assert error_of(send(client)) == expected
    if role != "billing":  # this role sees no deployments
        has_chat = "data-chat=" in page(client, change_path(TABLE, row.pk))
        assert has_chat == (expected[0] == 503)


def test_operators_and_visitors_have_no_chat(organization: Organization) -> None:
    row, operator = make_stopped(organization), operator_client()

    assert "data-chat=" not in page(operator, change_path(TABLE, row.pk))
    assert error_of(send(operator)) == (403, "not_a_member")
    assert error_of(send(Client())) == (401, "not_signed_in")


def test_a_deployment_of_another_organization_is_not_found(
    organization: Organization, other_organization: Organization
) -> None:
    make_stopped(other_organization)
    client = sign_in(organization, "owner")

    foreign, unknown = send(client), send(client, "slow")

    assert error_of(foreign) == error_of(unknown) == (404, "model_not_found")
    assert foreign.content == unknown.content.replace(b"slow", b"fast")


def test_a_page_that_was_loaded_before_another_organization_was_chosen_sends_no_message_to_it(
    organization: Organization, other_organization: Organization
) -> None:
    """Both organizations have a deployment of the same name, so only the header tells which one the page shows."""
    row = make_stopped(organization)
    Deployment.objects.create(organization=other_organization, name="fast", base_model=row.base_model, state="stopped")
    client = sign_in(organization, "owner", "both")
    Member.objects.create(organization=other_organization, user=User.objects.get(username="both"), role="owner")
    shown = f'data-organization="{organization.pk}"'
    assert shown in page(client, change_path(TABLE, row.pk))
    body = json.dumps({"model": "fast", "messages": [{"role": "user", "content": "hi"}]})
    headers = {ORGANIZATION_HEADER: organization.pk}

    before = client.post(CHAT_PATH, body, content_type="application/json", headers=headers)
    client.post(reverse("choose-organization"), {"organization": other_organization.pk})
    after = client.post(CHAT_PATH, body, content_type="application/json", headers=headers)

    assert error_of(before) == (503, "deployment_stopped")
    assert error_of(after) == (409, "organization_changed")


def test_a_message_without_the_pages_token_is_refused(organization: Organization) -> None:
    row = make_stopped(organization)
    client = sign_in(organization, "owner")
    client.handler.enforce_csrf_checks = True
    token = page(client, change_path(TABLE, row.pk)).partition('data-token="')[2].partition('"')[0]
    body = json.dumps({"model": "fast", "messages": []})

    for headers in ({}, {"X-CSRFToken": token[:-1] + "!"}):
        response = client.post(CHAT_PATH, body, content_type="application/json", headers=headers)
        assert error_of(response) == (403, "csrf_failed")
    form = client.post(CHAT_PATH, {"csrfmiddlewaretoken": token})
    assert error_of(form) == (415, "unsupported_media_type")
    accepted = client.post(CHAT_PATH, body, content_type="application/json", headers={"X-CSRFToken": token})
    assert error_of(accepted) == (503, "deployment_stopped")


def test_a_member_who_lacks_the_required_second_factor_is_refused(organization: Organization) -> None:
    make_stopped(organization)
    client = sign_in(organization, "owner")
    Organization.objects.update(requires_two_factor=True)

    assert error_of(send(client)) == (403, "second_factor_required")


def test_a_removed_member_is_refused(organization: Organization) -> None:
    make_stopped(organization)
    client = sign_in(organization, "owner")
    Member.objects.all().delete()

    assert error_of(send(client)) == (403, "not_a_member")


def test_members_of_an_organization_that_leaves_are_refused(organization: Organization) -> None:
    make_stopped(organization)
    client = sign_in(organization, "owner")
    Organization.objects.update(deletion_requested_at="2026-01-01T00:00:00Z")

    assert error_of(send(client)) == (403, "organization_leaving")


def test_messages_count_towards_the_organizations_requests_per_minute(organization: Organization) -> None:
    make_stopped(organization)
    Limits.objects.create(organization=organization, requests_per_minute=1)
    client = sign_in(organization, "owner")

    assert error_of(send(client)) == (503, "deployment_stopped")
    assert error_of(send(client)) == (429, "rate_limit_exceeded")


def test_the_page_says_why_a_message_cannot_be_answered_at_once(organization: Organization) -> None:
    row = make_stopped(organization)
    client = sign_in(organization, "owner")
    for state, words in (
        (State.STOPPED, "Start it to try it."),
        (State.SLEEPING, "The next message wakes the deployment."),
        (State.PROVISIONING, "No replica is ready yet"),
    ):
        Deployment.objects.update(state=state)
        assert words in page(client, change_path(TABLE, row.pk))

    response = send(client)

    assert error_of(response) == (503, "deployment_not_ready")
    assert "Try again in some seconds." in json.loads(response.content)["error"]["message"]


def test_a_deleted_deployment_has_no_chat(organization: Organization) -> None:
    row = make_stopped(organization)
    Deployment.objects.update(deleted_at="2026-01-01T00:00:00Z")

    assert "data-chat=" not in page(sign_in(organization, "owner"), change_path(TABLE, row.pk))
    assert error_of(send(sign_in(organization, "owner", "other"))) == (404, "model_not_found")


def test_a_member_of_an_organization_that_has_reached_its_cap_is_refused(organization: Organization) -> None:
    row = make_stopped(organization)
    make_replica(row)
    SpendCap.objects.create(organization=organization, nanousd=0)

    response = send(sign_in(organization, "owner"))

    assert error_of(response) == (429, "spend_cap_reached")
    assert UsageRecord.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_the_usage_and_cost_of_a_message_are_those_of_a_request_of_the_organization(
    deployment: Deployment, caller: Organization
) -> None:
    price_set(base_model_id="", input_nanousd=10, output_nanousd=30)

    response = send(sign_in(caller, "member"), max_tokens=5)

    assert response.status_code == 200
    answer = json.loads(response.content)
    assert answer["echo"]["max_tokens"] == 5
    assert answer["path"] == "/v1/chat/completions"
    record = UsageRecord.objects.get()
    assert (record.organization, record.model, record.requests) == (caller, "fast", 1)
    assert (record.input_tokens, record.output_tokens, record.api_key_id, record.project_id) == (7, 2, "", "")
    assert (record.input_nanousd, record.output_nanousd) == (7 * 10, 2 * 30)
    assert MonthlySpend.objects.get(project_id="").nanousd == 130
    assert {line.organization_id for line in LedgerLine.objects.all()} == {caller.pk}
