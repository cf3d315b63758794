"""A threshold of spending is reported once in each month in which it is reached: an event, its webhooks and a mail."""

import datetime as dt
import threading
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from control.billing.ledger.months import closes_at, month_of, start_of
from control.billing.spending.models import SpendCap
from control.billing.thresholds.models import Threshold, ThresholdReport
from control.billing.thresholds.selectors import thresholds_to_report
from control.billing.thresholds.services import threshold_report, thresholds_report
from control.billing.usage.models import MonthlySpend
from control.billing.usage.services import Tokens, price_set
from control.tenants.accounts.models import Member, Organization, User
from control.tenants.administration.services import project_create
from control.tenants.authentication.caller import Caller
from control.tenants.events.models import Event
from control.tenants.row_security.scope import Across, across_tenants
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from tests.control.factories import add_usage, client_of, make_key, make_organization
from tests.control.operations.sign_in.support import mails_after

DOLLAR = 10**9  # in nanodollars
TYPE = "spending.threshold_reached"


@pytest.fixture(autouse=True)
def _price(db: None) -> None:
    price_set(base_model_id="", input_nanousd=DOLLAR, output_nanousd=DOLLAR)


def state(client: Client, *thresholds: dict[str, Any], **body: Any) -> Any:
    content = {"thresholds": thresholds, **body}
    response = client.put("/v1/spending_thresholds", content, content_type="application/json")
    assert response.status_code == 200, response.content
    return response.json()


def spend(organization: Organization, dollars: int, **caller: Any) -> None:
    add_usage(Caller(organization_id=organization.pk, **caller), tokens=Tokens(input=dollars))


def report() -> None:
    with across_tenants(Across.HOUSEKEEPING):
        thresholds_report()


def reported(organization: Organization) -> list[str]:
    """Returns the object ids of the events, in their order."""
    events = Event.objects.filter(organization=organization, type=TYPE).order_by("pk")
    return list(events.values_list("object_id", flat=True))


def make_endpoint(organization: Organization) -> WebhookEndpoint:
    return WebhookEndpoint.objects.create(organization=organization, url="https://example.com", events=["spending.*"])


def add_member(organization: Organization, role: str, *, has_joined: bool = True) -> str:
    address = f"{role}{User.objects.count()}@example.com"
    user = User.objects.create_user(address, address, last_login=timezone.now() if has_joined else None)
    Member.objects.create(organization=organization, user=user, role=role)
    return address


def test_each_threshold_is_reported_once_a_month_when_it_is_reached(client: Client, organization: Organization) -> None:
    SpendCap.objects.create(organization=organization, nanousd=100 * DOLLAR)
    stated = state(client, {"amount": 50}, {"percent_of_cap": 80})["thresholds"]
    by_amount, by_percent = (found["id"] for found in stated)
    seen = []
    for dollars in (49, 1, 29, 1, 100):
        spend(organization, dollars)
        report()
        report()
        seen.append(reported(organization))

    assert seen == [[], [by_amount], [by_amount], [by_amount, by_percent], [by_amount, by_percent]]
    shown = client.get("/v1/spending_thresholds").json()
    assert shown["spent"]["value"] == 180
    assert all(found["reached_at"] is not None for found in shown["thresholds"])
    events = [event for event in client.get("/v1/events").json()["data"] if event["type"] == TYPE]
    assert {event["data"]["id"] for event in events} == {by_amount, by_percent}


def test_of_two_processes_that_find_the_same_reached_threshold_one_reports_it(
    client: Client, organization: Organization
) -> None:
    make_endpoint(organization)
    state(client, {"amount": 5})
    spend(organization, 5)
    month = month_of(timezone.now())
    (found,), (found_elsewhere,) = list(thresholds_to_report(month)), list(thresholds_to_report(month))

    assert threshold_report(threshold=found, month=month)
    assert not threshold_report(threshold=found_elsewhere, month=month)

    assert len(reported(organization)) == WebhookDelivery.objects.count() == ThresholdReport.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_many_processes_that_count_and_report_at_once_report_a_threshold_once() -> None:
    organization = make_organization()
    make_endpoint(organization)
    state(client_of(organization), {"amount": 4})

    def count_and_report() -> None:
        try:
            with across_tenants(Across.HOUSEKEEPING):
                spend(organization, 1)
                thresholds_report()
        finally:
            connection.close()

    threads = [threading.Thread(target=count_and_report) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert MonthlySpend.objects.get().nanousd == 6 * DOLLAR
    assert len(reported(organization)) == WebhookDelivery.objects.count() == 1


def test_changes_of_the_price_and_the_cap_and_a_second_request_do_not_report_a_threshold_again(
    client: Client, organization: Organization
) -> None:
    cap = SpendCap.objects.create(organization=organization, nanousd=10 * DOLLAR)
    state(client, {"percent_of_cap": 50})
    spend(organization, 4)
    report()
    assert reported(organization) == []
    price_set(base_model_id="", input_nanousd=3 * DOLLAR, output_nanousd=0)
    spend(organization, 1)  # 7 of 10 dollars
    report()
    first = reported(organization)
    assert len(first) == 1

    SpendCap.objects.filter(pk=cap.pk).update(nanousd=100 * DOLLAR)
    report()
    SpendCap.objects.filter(pk=cap.pk).update(nanousd=DOLLAR)
    price_set(base_model_id="", input_nanousd=DOLLAR, output_nanousd=0)
    spend(organization, 1)
    state(client)
    state(client, {"percent_of_cap": 50})
    report()

    assert reported(organization) == first


def test_a_threshold_is_reported_again_in_the_next_month(client: Client, organization: Organization) -> None:
    (stated,) = state(client, {"amount": 5})["thresholds"]
    spend(organization, 5)
    report()
    ThresholdReport.objects.update(month=month_of(start_of(month_of(timezone.now())) - dt.timedelta(days=1)))

    report()

    assert reported(organization) == [stated["id"]] * 2


def test_late_usage_of_the_previous_month_counts_until_the_month_is_closed(
    client: Client, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    state(client, {"amount": 5})
    now, month = timezone.now(), month_of(timezone.now())
    add_usage(Caller(organization_id=organization.pk), tokens=Tokens(input=5), at=now)
    for later, num in ((closes_at(month), 0), (closes_at(month) - dt.timedelta(seconds=1), 1)):
        monkeypatch.setattr("django.utils.timezone.now", lambda later=later: later)
        report()
        assert len(reported(organization)) == num


def test_a_threshold_that_is_set_after_the_end_of_a_month_is_not_reported_for_that_month(
    client: Client, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    spend(organization, 5)
    month = month_of(timezone.now())
    state(client, {"amount": 5})
    Threshold.objects.update(created_at=closes_at(month) - dt.timedelta(hours=1))
    monkeypatch.setattr("django.utils.timezone.now", lambda: closes_at(month) - dt.timedelta(minutes=1))

    report()

    assert reported(organization) == []


def test_a_project_has_its_own_thresholds_and_cap(client: Client, organization: Organization) -> None:
    project, other = (project_create(organization=organization, name=name) for name in ("a", "b"))
    SpendCap.objects.create(organization=organization, nanousd=DOLLAR)
    SpendCap.objects.create(organization=organization, project=project, nanousd=10 * DOLLAR)
    state(client, {"percent_of_cap": 100}, project_id=project.pk)
    of_project = client_of(organization, project=project)
    (stated,) = of_project.get("/v1/spending_thresholds").json()["thresholds"]
    spend(organization, 50, project_id=other.pk)
    spend(organization, 9, project_id=project.pk)
    report()
    assert reported(organization) == []

    spend(organization, 1, project_id=project.pk)
    report()

    assert reported(organization) == [stated["id"]]
    ids = [event["data"]["id"] for event in of_project.get("/v1/events").json()["data"]]
    assert ids == [stated["id"]], "the project's keys see the event"
    assert client_of(organization, project=other).get("/v1/events").json()["data"] == []
    assert client.get("/v1/spending_thresholds").json()["thresholds"] == []
    assert (
        client.get("/v1/spending_thresholds", {"project_id": project.pk}).json()["thresholds"][0]["id"] == stated["id"]
    )


def test_a_percentage_of_a_cap_that_does_not_exist_is_not_reached(client: Client, organization: Organization) -> None:
    state(client, {"percent_of_cap": 1})
    spend(organization, 1000)
    report()

    assert reported(organization) == []


def test_a_share_of_the_largest_cap_can_be_computed(client: Client, organization: Organization) -> None:
    SpendCap.objects.create(organization=organization, nanousd=10**9 * DOLLAR)
    state(client, {"percent_of_cap": 100})
    spend(organization, 10**9)
    report()

    assert len(reported(organization)) == 1


def test_one_mail_goes_to_the_owners_and_billing_members_who_have_signed_in(
    client: Client, organization: Organization, django_capture_on_commit_callbacks: Any
) -> None:
    recipients = [add_member(organization, role) for role in ("owner", "billing")]
    add_member(organization, "member")
    add_member(organization, "read_only")
    add_member(organization, "owner", has_joined=False)
    add_member(make_organization(), "owner")
    organization.name = "Acme\nBcc: all@example.com"  # must not become a header of the mail
    organization.save()
    state(client, {"amount": 50})
    spend(organization, 60)

    (mail,) = mails_after(django_capture_on_commit_callbacks, report, num=1)

    assert sorted(mail.to) == sorted(recipients)
    subject, _, month = mail.subject.rpartition(" in ")
    assert subject == "Acme Bcc: all@example.com has reached 50 USD"
    assert f"has spent 60 USD in {month} (UTC)" in mail.body
    assert mails_after(django_capture_on_commit_callbacks, report, num=0) == []


def test_thresholds_are_replaced_and_those_that_stay_keep_their_ids(client: Client) -> None:
    first = state(client, {"amount": 50}, {"percent_of_cap": 80})["thresholds"]
    second = state(client, {"amount": 50.0}, {"amount": 60})["thresholds"]

    assert [found["amount"] and found["amount"]["value"] for found in first] == [50, None]
    assert [found["amount"]["value"] for found in second] == [50, 60]
    assert first[0]["id"] == second[0]["id"]
    assert client.get("/v1/spending_thresholds").json()["thresholds"] == second
    assert state(client)["thresholds"] == []


@pytest.mark.parametrize(
    ("thresholds", "param"),
    [
        ([{"amount": number} for number in range(1, 7)], "thresholds"),
        ([{"amount": 1}, {"amount": 1.0}], "thresholds"),
        ([{"amount": 1}, {}], "thresholds.1"),
        ([{"amount": 1, "percent_of_cap": 1}], "thresholds.0"),
        ([{"percent_of_cap": 101}], "thresholds.0.percent_of_cap"),
        ([{"percent_of_cap": 0}], "thresholds.0.percent_of_cap"),
        ([{"amount": -1}], "thresholds.0.amount"),
    ],
)
def test_invalid_thresholds_are_refused_and_change_nothing(
    client: Client, thresholds: list[dict[str, Any]], param: str
) -> None:
    before = state(client, {"amount": 7})
    response = client.put("/v1/spending_thresholds", {"thresholds": thresholds}, content_type="application/json")

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert client.get("/v1/spending_thresholds").json() == before


def test_the_scope_of_spend_caps_is_needed(organization: Organization) -> None:
    _, token = make_key(organization, scopes=["spend_caps:read"])
    reader = Client(headers={"Authorization": f"Bearer {token}"})

    assert reader.get("/v1/spending_thresholds").status_code == 200
    response = reader.put("/v1/spending_thresholds", {"thresholds": []}, content_type="application/json")
    assert (response.status_code, response.json()["error"]["code"]) == (403, "insufficient_scope")
    _, token = make_key(organization, scopes=["usage:read"])
    assert Client(headers={"Authorization": f"Bearer {token}"}).get("/v1/spending_thresholds").status_code == 403
