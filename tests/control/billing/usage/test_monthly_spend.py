"""Counters store the amount spent in each month. They always equal the sums of the usage records."""

import datetime as dt
import importlib
import threading
from collections.abc import Callable

import pytest
from django.apps import apps
from django.db import connection
from django.db.models import F, Sum
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from control.billing.spending.models import SpendCap
from control.billing.spending.selectors import cap_reached
from control.billing.usage.models import MonthlySpend, UsageRecord
from control.billing.usage.services import Tokens, Used, minute_of, price_set, usage_add_all
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from control.tenants.row_security.scope import Across, across_tenants
from tests.control.factories import add_usage, make_organization

USD = 10**9


@pytest.fixture(autouse=True)
def _price(db: None) -> None:
    price_set(base_model_id="", input_nanousd=USD, output_nanousd=3 * USD)


def add(organization: Organization, *, project_id: str = "", at: dt.datetime | None = None, output: int = 0) -> None:
    caller = Caller(organization_id=organization.pk, project_id=project_id)
    add_usage(caller, tokens=Tokens(input=1, output=output), at=at)


def counters() -> set[tuple[str, str, dt.date, int]]:
    return set(MonthlySpend.objects.values_list("organization_id", "project_id", "month", "nanousd"))


def test_each_month_and_project_has_its_own_counter() -> None:
    ours, other = make_organization(), make_organization()
    may = dt.datetime(2026, 5, 31, 23, 59, 59, tzinfo=dt.UTC)
    june = may + dt.timedelta(seconds=1)

    add(ours, at=may)
    add(ours, at=june)
    add(ours, at=june, project_id="p", output=2)
    add(other, at=june)

    assert counters() == {
        (ours.pk, "", dt.date(2026, 5, 1), USD),
        (ours.pk, "", dt.date(2026, 6, 1), 8 * USD),
        (ours.pk, "p", dt.date(2026, 6, 1), 7 * USD),
        (other.pk, "", dt.date(2026, 6, 1), USD),
    }


def test_the_records_and_counters_of_usage_that_is_written_together_add_up_to_its_cost() -> None:
    ours, caller = make_organization(), {}
    for project_id in ("", "p"):
        caller[project_id] = Caller(organization_id=ours.pk, project_id=project_id)
    minute = minute_of(timezone.now())
    usage = [
        Used(
            caller=caller[project_id],
            model=model,
            base_model_id="",
            object_id="endpoint",
            sequence=f"{project_id}{number}",
            at=minute,
            tokens=Tokens(input=5, output=7, cached=1),
            num_requests=1,
            is_batch=False,
        )
        for project_id in ("p", "")
        for number, model in enumerate(["b", "a", "b"])
    ]

    with CaptureQueriesContext(connection) as queries:
        cost = usage_add_all(usage)

    assert sum('FROM "usage_price"' in query["sql"] for query in queries) == 1, "prices are read once per base model"
    sums = UsageRecord.objects.aggregate(cost=Sum(F("input_nanousd") + F("output_nanousd")), requests=Sum("requests"))
    assert sums == {"cost": cost, "requests": 6}
    assert cost == 6 * (5 + 3 * 7) * USD
    assert {row[1:4:2] for row in counters()} == {("", cost), ("p", cost // 2)}


def test_the_number_of_queries_of_a_cap_check_does_not_grow_with_the_usage_records() -> None:
    organization = make_organization()
    SpendCap.objects.create(organization=organization, nanousd=USD)
    rows = (
        UsageRecord(organization=organization, minute=timezone.now(), model=f"m{number}", is_batch=False)
        for number in range(50)
    )
    UsageRecord.objects.bulk_create(rows)

    with CaptureQueriesContext(connection) as queries:
        assert cap_reached(Caller(organization_id=organization.pk)) is None

    assert len(queries) == 2
    assert not any("usage_usagerecord" in query["sql"] for query in queries)


def test_the_migration_fills_the_counters_from_the_usage_records() -> None:
    organization = make_organization()
    for month in (4, 5):
        at = dt.datetime(2026, month, 2, tzinfo=dt.UTC)
        add(organization, at=at)
        add(organization, at=at + dt.timedelta(days=20), project_id="p")
    before = counters()
    MonthlySpend.objects.all().delete()

    importlib.import_module("control.billing.usage.migrations.0003_fill_monthly_spend").fill(apps, None)

    assert len(before) == 4
    assert counters() == before


@pytest.mark.django_db(transaction=True)
def test_counters_are_correct_after_concurrent_writes_of_usage() -> None:
    price_set(base_model_id="", input_nanousd=USD, output_nanousd=USD)
    organization = make_organization()

    def write() -> None:
        try:
            for _ in range(5):
                add(organization, project_id="p")
        finally:
            connection.close()

    threads = [threading.Thread(target=_as_operator, args=(write,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {row[1:4:2] for row in counters()} == {("", 20 * USD), ("p", 20 * USD)}


def _as_operator(write: Callable[[], None]) -> None:
    with across_tenants(Across.COMMAND):
        write()
