"""Each cent of the ledger is on exactly one invoice, and an invoice shows only the caller's own usage."""

import csv
import datetime as dt
import io
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from control.billing.ledger.models import CreditReason, LedgerLine, Subject
from control.billing.ledger.months import closes_at, end_of, month_of, start_of
from control.billing.ledger.selectors import ledger_totals
from control.billing.usage.credits import credit_add
from control.billing.usage.device_time import device_time_add
from control.billing.usage.services import Tokens, price_set
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import project_create
from control.tenants.authentication.caller import Caller
from control.workflows.invoices.lines import CENT, invoice_of, rounded_to_cents
from control.workflows.invoices.table import invoice_csv
from tests.control.factories import add_usage, client_of, make_base_model, make_key, make_organization

DOLLAR = 10**9  # in nanodollars
HOUR = dt.timedelta(hours=1)
OCTOBER = dt.date(2026, 10, 1)


def this_month() -> str:
    return f"{timezone.now().astimezone(dt.UTC):%Y-%m}"


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def get_csv(client: Client, month: str) -> list[dict[str, str]]:
    response: Any = client.get(f"/v1/invoices/{month}/csv")
    assert response.status_code == 200, response.content
    return rows_of(b"".join(response.streaming_content))


def line(organization: Organization, number: int, **values: Any) -> LedgerLine:
    """Returns an unsaved line of October 2026 that was written in time."""
    at = values.pop("at", start_of(OCTOBER))
    defaults = {"subject": Subject.BATCH_INPUT_TOKENS, "object_id": "batch_1", "count": 1, "price_nanousd": 1}
    return LedgerLine(
        organization=organization,
        sequence=f"{organization.pk}-{number}",
        started_at=at,
        ended_at=at,
        **{**defaults, **values},
    )


def test_an_invoice_groups_usage_by_project_object_model_unit_and_price(
    client: Client, organization: Organization
) -> None:
    model, project = make_base_model("llama"), project_create(organization=organization, name="support")
    caller = Caller(organization_id=organization.pk, project_id=project.pk)
    price_set(base_model_id=model.pk, input_nanousd=DOLLAR // 100, output_nanousd=DOLLAR)
    for _ in range(2):
        add_usage(caller, base_model_id=model.pk, tokens=Tokens(input=50, output=1))
    add_usage(caller, base_model_id=model.pk, tokens=Tokens(input=30), is_batch=True)
    price_set(base_model_id=model.pk, input_nanousd=DOLLAR // 50, output_nanousd=DOLLAR)
    add_usage(caller, base_model_id=model.pk, tokens=Tokens(input=1))
    call_command("device_price_set", "cuda", "2.50")
    now = timezone.now()
    device_time_add(
        caller=Caller(organization_id=organization.pk),
        subject=Subject.TRAINING_TIME,
        object_id="job_1",
        sequence="1",
        device_kind="cuda",
        since=now - HOUR / 2,
        until=now,
    )

    invoice = client.get(f"/v1/invoices/{this_month()}").json()

    names = ("project_name", "object_kind", "model_name", "device_kind", "unit", "quantity", "unit_price", "amount")
    assert [tuple(found[name] for name in names) for found in invoice["lines"]] == [
        (None, "training", None, "cuda", "device_hour", "0.5", "2.5", "1.25"),
        ("support", "batch", "llama", None, "input_token", "30", "0.005", "0.15"),
        ("support", "endpoint", "llama", None, "input_token", "100", "0.01", "1.00"),
        ("support", "endpoint", "llama", None, "input_token", "1", "0.02", "0.02"),
        ("support", "endpoint", "llama", None, "output_token", "2", "1", "2.00"),
    ]
    assert (invoice["id"], invoice["total"], invoice["currency"]) == (this_month(), "4.42", "usd")
    assert not invoice["is_closed"]
    of_csv = get_csv(client, this_month())
    assert [tuple(row[name] or None for name in names) for row in of_csv] == [
        tuple(found[name] for name in names) for found in invoice["lines"]
    ]


def test_a_credit_is_a_line_of_its_own_with_a_negative_amount(client: Client, organization: Organization) -> None:
    call_command("device_price_set", "cuda", "2.50")
    now = timezone.now()
    device_time_add(
        caller=Caller(organization_id=organization.pk),
        subject=Subject.TRAINING_TIME,
        object_id="job_1",
        sequence="1",
        device_kind="cuda",
        since=now - HOUR,
        until=now,
    )
    credit_add(
        subject=Subject.TRAINING_TIME, object_id="job_1", sequence="1", percent=40, reason=CreditReason.GATE_REJECTED
    )

    invoice = client.get(f"/v1/invoices/{this_month()}").json()

    names = ("object_kind", "device_kind", "unit", "quantity", "unit_price", "amount", "credit_reason")
    assert [tuple(found[name] for name in names) for found in invoice["lines"]] == [
        ("training", "cuda", "device_hour", "1", "2.5", "2.50", None),
        ("training", "cuda", "device_hour", "0.4", "2.5", "-1.00", "gate_rejected"),
    ]
    assert invoice["total"] == "1.50"
    assert [row["amount"] for row in get_csv(client, this_month())] == ["2.50", "-1.00"]


lines = st.lists(
    st.tuples(
        st.integers(0, 10**6),  # tokens
        st.integers(0, 10**8),  # price of a token, in nanodollars
        st.integers(0, 200),  # percent
        st.sampled_from(["", "proj_1", "proj_2"]),
        st.integers(0, 100),  # percent of the cost that a credit gives back
    ),
    max_size=30,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(used=lines)
@example(used=[(1, 4_000_000, 100, "", 0), (1, 4_000_001, 100, "", 0), (1, 4_000_002, 100, "", 0)])  # 0.4 cents each
@example(used=[(1, 4_000_000, 100, "", 100), (1, 4_000_001, 100, "proj_1", 50)])
def test_the_lines_of_an_invoice_add_up_to_the_ledgers_total_to_the_cent(
    db: None, used: list[tuple[int, int, int, str, int]]
) -> None:
    organization = make_organization()
    LedgerLine.objects.bulk_create(
        line(
            organization,
            number,
            count=tokens,
            price_nanousd=price,
            price_percent=percent,
            project_id=project,
            cost_nanousd=tokens * price * percent // 100,
        )
        for number, (tokens, price, percent, project, _) in enumerate(used)
    )
    LedgerLine.objects.bulk_create(
        line(
            organization,
            -number - 1,
            count=0,
            price_nanousd=price,
            price_percent=percent,
            project_id=project,
            cost_nanousd=-(tokens * price * percent // 100 * given_back // 100),
            credit_reason=CreditReason.ATTEMPT_FAILED,
            credited_count=tokens * given_back // 100,
        )
        for number, (tokens, price, percent, project, given_back) in enumerate(used)
        if given_back
    )

    invoice = invoice_of(organization, OCTOBER)

    totals = ledger_totals(organization, start=start_of(OCTOBER), end=end_of(OCTOBER))
    ledger = sum(total.cost_nanousd for total in totals)
    of_csv = sum((Decimal(row["amount"]) for row in rows_of(b"".join(invoice_csv(invoice)))), Decimal())
    assert of_csv == invoice.total == Decimal((2 * ledger + CENT) // (2 * CENT)).scaleb(-2)
    usage = [found for found in invoice.lines if found.credit_reason is None]
    assert sum(found.quantity for found in usage) == sum(total.count for total in totals)
    assert all((found.credit_reason is not None) == (found.amount < 0) for found in invoice.lines if found.amount)


@given(amounts=st.lists(st.integers(-(10**12), 10**12), max_size=50))
def test_rounding_changes_each_line_by_less_than_a_cent_and_the_sum_by_half_a_cent_at_most(amounts: list[int]) -> None:
    rounded = [int(amount.scaleb(9)) for amount in rounded_to_cents(amounts)]

    assert all(abs(after - before) < CENT for before, after in zip(amounts, rounded, strict=True))
    assert abs(sum(rounded) - sum(amounts)) <= CENT // 2
    assert all(after % CENT == 0 for after in rounded)


def test_an_invoice_never_shows_usage_of_another_organization_or_another_project(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    price_set(base_model_id="", input_nanousd=DOLLAR, output_nanousd=0)
    own, other = (project_create(organization=organization, name=name) for name in ("own", "other"))
    for project_id, dollars in ((own.pk, 1), (other.pk, 10), ("", 100)):
        add_usage(Caller(organization_id=organization.pk, project_id=project_id), tokens=Tokens(input=dollars))
    add_usage(Caller(organization_id=other_organization.pk), tokens=Tokens(input=1000))

    def totals(caller: Client) -> tuple[str, Decimal]:
        in_csv = sum((Decimal(row["amount"]) for row in get_csv(caller, this_month())), Decimal())
        return caller.get(f"/v1/invoices/{this_month()}").json()["total"], in_csv

    assert totals(client) == ("111.00", Decimal(111))
    assert totals(client_of(organization, project=own)) == ("1.00", Decimal(1))
    assert totals(client_of(other_organization)) == ("1000.00", Decimal(1000))


def test_use_that_is_recorded_after_its_month_was_closed_is_on_the_invoice_of_the_month_of_the_record(
    client: Client, organization: Organization
) -> None:
    price_set(base_model_id="", input_nanousd=DOLLAR, output_nanousd=0)
    caller = Caller(organization_id=organization.pk)
    LedgerLine.objects.bulk_create([line(organization, 1, at=end_of(OCTOBER) - HOUR, cost_nanousd=7 * DOLLAR)])
    before = client.get("/v1/invoices/2026-10").json()

    add_usage(caller, tokens=Tokens(input=3), at=end_of(OCTOBER) - HOUR)

    after, now = client.get("/v1/invoices/2026-10").json(), client.get(f"/v1/invoices/{this_month()}").json()
    assert (before["is_closed"], before["total"]) == (True, "7.00")
    assert after == before
    assert [(found["used_in"], found["amount"]) for found in now["lines"]] == [("2026-10", "3.00")]


def test_use_that_is_recorded_before_its_month_is_closed_stays_in_its_month(organization: Organization) -> None:
    add_usage(Caller(organization_id=organization.pk), tokens=Tokens(input=1))

    assert LedgerLine.objects.get(subject=Subject.ENDPOINT_INPUT_TOKENS).billed_month is None


def test_every_ledger_line_is_on_exactly_one_invoice(organization: Organization) -> None:
    """The lines are at both sides of the ends of months."""
    caller, now = Caller(organization_id=organization.pk), timezone.now()
    moments = [end_of(OCTOBER) - dt.timedelta(microseconds=1), end_of(OCTOBER), now, now - 40 * 24 * HOUR]
    for moment in moments:
        add_usage(caller, tokens=Tokens(input=1), at=moment)
    LedgerLine.objects.bulk_create(line(organization, number, at=moment) for number, moment in enumerate(moments))

    month, found = dt.date(2026, 1, 1), Decimal()
    while month <= month_of(now):
        found += sum((one.quantity for one in invoice_of(organization, month).lines), Decimal())
        month = month_of(end_of(month))

    assert found == 2 * len(moments)


def test_a_month_is_closed_a_day_after_its_end() -> None:
    assert closes_at(dt.date(2026, 12, 1)) == dt.datetime(2027, 1, 2, tzinfo=dt.UTC)


@pytest.mark.parametrize("month", ["2026-13", "2026-1", "2999-01", "october", "1969-12", "2026-00", "２０２６-01"])
def test_an_invalid_month_and_a_future_month_have_no_invoice(client: Client, month: str) -> None:
    for path in (f"/v1/invoices/{month}", f"/v1/invoices/{month}/csv"):
        response = client.get(path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "invoice_not_found")


def test_a_name_that_a_spreadsheet_would_execute_is_quoted_in_the_csv(
    client: Client, organization: Organization
) -> None:
    project = project_create(organization=organization, name='=HYPERLINK("http://x","y")')
    add_usage(Caller(organization_id=organization.pk, project_id=project.pk), tokens=Tokens(input=1))

    assert [row["project_name"] for row in get_csv(client, this_month())] == ['\'=HYPERLINK("http://x","y")']


def test_only_a_key_that_may_read_usage_can_read_invoices(organization: Organization) -> None:
    for scopes, status in ((["usage:read"], 200), (["files:*"], 403)):
        _, token = make_key(organization, scopes=scopes)
        for path in ("/v1/invoices/2026-10", "/v1/invoices/2026-10/csv"):
            assert Client(headers={"Authorization": f"Bearer {token}"}).get(path).status_code == status


def test_an_invoice_takes_the_same_number_of_queries_for_any_number_of_lines(
    organization: Organization, django_assert_num_queries: Any
) -> None:
    for number in range(2):
        LedgerLine.objects.bulk_create(
            line(organization, 100 * number + price, price_nanousd=price) for price in range(50)
        )
        with django_assert_num_queries(3):
            invoice = invoice_of(organization, OCTOBER)
        assert len(invoice.lines) == 50
