"""Device time is charged at the hourly price of its kind of device at that time, and counts towards spend caps."""

import datetime as dt
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.spending.models import SpendCap
from control.billing.spending.selectors import cap_reached
from control.billing.usage.device_time import device_time_add
from control.billing.usage.services import Tokens, price_set
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import project_create
from control.tenants.authentication.caller import Caller
from tests.control.factories import add_usage, client_of, make_key, make_organization

DOLLAR = 10**9  # in nanodollars
HOUR = dt.timedelta(hours=1)


def use_device(
    organization: Organization, *, sequence: str = "1", hours: float = 1.0, kind: str = "cuda", **values: Any
) -> bool:
    """Records the use of a device that ended just now."""
    now = timezone.now()
    return device_time_add(
        caller=Caller(organization_id=organization.pk, project_id=values.pop("project_id", "")),
        subject=values.pop("subject", Subject.TRAINING_TIME),
        object_id="job_1",
        sequence=sequence,
        device_kind=kind,
        since=now - hours * HOUR,
        until=now,
    )


def costs_of(client: Client, **params: str) -> list[dict[str, Any]]:
    query = {"start_time": str(int((timezone.now() - HOUR).timestamp())), **params}
    page = client.get("/v1/organization/costs", query).json()
    return [result for bucket in page["data"] for result in bucket["results"]]


def test_each_ledger_line_keeps_the_device_price_of_the_time_when_it_was_recorded(organization: Organization) -> None:
    use_device(organization, sequence="1")
    call_command("device_price_set", "cuda", "2.50")
    use_device(organization, sequence="2", hours=0.5)
    call_command("device_price_set", "cuda", "4")
    use_device(organization, sequence="3")
    use_device(organization, sequence="4", kind="cpu")
    call_command("device_price_remove", "cuda")
    use_device(organization, sequence="5")

    lines = LedgerLine.objects.order_by("sequence").values_list("price_nanousd", "cost_nanousd")
    free = (None, 0)
    assert list(lines) == [free, (5 * DOLLAR // 2, 5 * DOLLAR // 4), (4 * DOLLAR, 4 * DOLLAR), free, free]


@pytest.mark.parametrize("usd", ["-1", "0.0000000001", "1000001", "NaN"])
def test_an_impossible_price_is_refused(db: None, usd: str) -> None:
    with pytest.raises(CommandError):
        call_command("device_price_set", "--", "cuda", usd)


def test_costs_and_the_total_cost_contain_device_time(client: Client, organization: Organization) -> None:
    call_command("device_price_set", "cuda", "3")
    price_set(base_model_id="", input_nanousd=DOLLAR, output_nanousd=0)
    project = project_create(organization=organization, name="p").pk
    add_usage(Caller(organization_id=organization.pk, project_id=project), tokens=Tokens(input=5))
    use_device(organization, project_id=project)
    use_device(organization, sequence="2", subject=Subject.BATCH_TIME)
    use_device(make_organization(), sequence="3")

    assert client.get("/v1/usage").json()["cost"]["value"] == 11
    assert [cost["amount"]["value"] for cost in costs_of(client)] == [11]
    by_project = costs_of(client, group_by="project_id")
    assert {cost["project_id"]: cost["amount"]["value"] for cost in by_project} == {project: 8, None: 3}
    items = {cost["line_item"]: cost for cost in costs_of(client, group_by="line_item")}
    assert set(items) == {"m, input_tokens", "m, output_tokens", "cuda, training_time", "cuda, batch_time"}
    training = items["cuda, training_time"]
    assert (training["quantity"], training["quantity_unit"], training["amount"]["value"]) == (
        3_600_000,
        "milliseconds",
        3,
    )
    assert [cost["amount"]["value"] for cost in costs_of(client, batch="true")] == [3]
    assert [cost["amount"]["value"] for cost in costs_of(client, models="m")] == [5]


def test_device_time_counts_once_towards_the_caps_of_the_organization_and_the_project(
    organization: Organization,
) -> None:
    call_command("device_price_set", "cuda", "3")
    project = project_create(organization=organization, name="p")
    of_project = SpendCap.objects.create(organization=organization, project=project, nanousd=4 * DOLLAR)
    of_all = SpendCap.objects.create(organization=organization, nanousd=6 * DOLLAR)
    caller = Caller(organization_id=organization.pk, project_id=project.pk)

    assert use_device(organization, project_id=project.pk)
    assert not use_device(organization, project_id=project.pk)  # the same attempt, reported again
    assert cap_reached(caller) is None
    use_device(organization, sequence="2")
    reached = cap_reached(caller)

    assert reached is not None
    assert reached.cap_id == of_all.pk
    use_device(organization, sequence="3", project_id=project.pk)
    assert client_of(organization).get(f"/v1/spend_caps/{of_project.pk}").json()["spent"]["value"] == 6


def test_the_ledger_is_listed_newest_first_in_pages_and_can_be_filtered(
    client: Client, organization: Organization
) -> None:
    call_command("device_price_set", "cuda", "3")
    for number in range(5):
        use_device(organization, sequence=str(number))
    use_device(organization, sequence="cpu", kind="cpu", subject=Subject.BATCH_TIME)
    add_usage(Caller(organization_id=organization.pk), tokens=Tokens(input=1))
    use_device(make_organization(), sequence="foreign")

    sequences, after = list[str](), ""
    while True:
        query = {"device_kind": "cuda", "limit": "2"} | ({"after": after} if after else {})
        page = client.get("/v1/usage/ledger", query)
        sequences += [line["sequence"] for line in page.json()["data"]]
        if not page.json()["has_more"]:
            break
        after = page.json()["last_id"]
    assert sequences == ["4", "3", "2", "1", "0"]

    line = page.json()["data"][0]
    assert line["id"] == "training_time:job_1:0"
    assert (line["count"], line["price"]["value"], line["cost"]["value"]) == (3_600_000, 3, 3)
    (of_batch,) = client.get("/v1/usage/ledger", {"subject": "batch_time"}).json()["data"]
    assert (of_batch["sequence"], of_batch["price"], of_batch["base_model_id"]) == ("cpu", None, None)
    assert len(client.get("/v1/usage/ledger").json()["data"]) == 8
    tomorrow = int((timezone.now() + 24 * HOUR).timestamp())
    assert client.get("/v1/usage/ledger", {"start_time": tomorrow}).json()["data"] == []


def test_a_ledger_page_cannot_start_after_a_line_of_another_organization(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    use_device(organization, sequence="1")
    use_device(other_organization, sequence="2")

    for after in ("training_time:job_1:2", "training_time:job_1:9", "x"):
        response = client.get("/v1/usage/ledger", {"after": after})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "after")


def test_only_a_key_that_may_read_usage_can_read_the_ledger(organization: Organization) -> None:
    for scopes, status in ((["usage:read"], 200), (["files:*"], 403)):
        _, token = make_key(organization, scopes=scopes)
        response = Client(headers={"Authorization": f"Bearer {token}"}).get("/v1/usage/ledger")
        assert response.status_code == status
