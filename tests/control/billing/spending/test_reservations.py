"""Concurrent requests cannot spend more than a cap allows, because each reserves the most that it can cost."""

import datetime as dt
import threading

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from control.billing.spending.models import SpendCap, SpendReservation
from control.billing.spending.reservations import reservations_release, reservations_renew, spend_reserve
from control.billing.usage.models import MonthlySpend, UsageRecord
from control.billing.usage.services import Tokens, price_set
from control.core.api.errors import ApiError
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import project_create
from control.tenants.authentication.caller import Caller
from control.tenants.row_security.scope import as_tenant
from tests.control.factories import add_usage, make_organization

USD = 10**9


def make_cap(organization: Organization, dollars: int) -> None:
    SpendCap.objects.create(organization=organization, nanousd=dollars * USD)


def reserve(organization: Organization, dollars: int, project_id: str = "") -> str:
    return spend_reserve(caller=Caller(organization_id=organization.pk, project_id=project_id), nanousd=dollars * USD)


def spend(organization: Organization, dollars: int) -> None:
    price_set(base_model_id="", input_nanousd=USD, output_nanousd=USD)
    add_usage(Caller(organization_id=organization.pk), tokens=Tokens(input=dollars))


def refusal(organization: Organization, dollars: int, project_id: str = "") -> ApiError:
    with pytest.raises(ApiError) as refused:
        reserve(organization, dollars, project_id)
    assert (refused.value.status, refused.value.type) == (429, "insufficient_quota")
    return refused.value


def test_a_request_that_fits_under_the_cap_only_after_others_have_ended_is_told_to_retry(
    organization: Organization,
) -> None:
    make_cap(organization, 10)
    spend(organization, 2)
    reserve(organization, 5)

    refused = refusal(organization, 4)

    assert refused.code == "spend_cap_reserved"
    assert refused.headers["Retry-After"] == "1"
    assert "up to 4 USD" in refused.message
    assert "another 5 USD" in refused.message
    reserve(organization, 3)


def test_a_request_that_would_exceed_the_cap_by_itself_is_told_not_to_retry(organization: Organization) -> None:
    make_cap(organization, 10)
    spend(organization, 8)

    refused = refusal(organization, 3)

    assert refused.code == "spend_cap_reached"
    assert refused.headers["x-should-retry"] == "false"
    assert "lower max_tokens" in refused.message


def test_a_cap_that_is_reached_refuses_requests_that_cost_nothing(organization: Organization) -> None:
    make_cap(organization, 0)

    assert refusal(organization, 0).code == "spend_cap_reached"


def test_a_reservation_reads_the_months_counter_and_no_usage_record(organization: Organization) -> None:
    make_cap(organization, 10)
    spend(organization, 2)

    with CaptureQueriesContext(connection) as queries:
        reserve(organization, 5)

    statements = [query["sql"] for query in queries]
    assert any(MonthlySpend._meta.db_table in sql for sql in statements)
    assert not [sql for sql in statements if UsageRecord._meta.db_table in sql]


def test_the_amount_of_a_released_reservation_can_be_reserved_again(organization: Organization) -> None:
    make_cap(organization, 10)
    held = reserve(organization, 10)
    refusal(organization, 1)

    reservations_release([held])

    reserve(organization, 10)


def test_the_reservation_of_a_process_that_died_expires(organization: Organization) -> None:
    make_cap(organization, 10)
    reserve(organization, 10)
    refusal(organization, 1)

    SpendReservation.objects.update(expires_at=timezone.now() - dt.timedelta(seconds=1))

    reserve(organization, 10)
    assert SpendReservation.objects.count() == 1, "expired reservations are deleted"


def test_a_renewed_reservation_does_not_expire(organization: Organization) -> None:
    make_cap(organization, 10)
    held = reserve(organization, 10)
    SpendReservation.objects.update(expires_at=timezone.now() + dt.timedelta(seconds=1))

    reservations_renew([held])

    assert SpendReservation.objects.get().expires_at > timezone.now() + dt.timedelta(seconds=30)


def test_a_projects_cap_counts_only_the_reservations_of_that_project(organization: Organization) -> None:
    project = project_create(organization=organization, name="p")
    SpendCap.objects.create(organization=organization, project=project, nanousd=5 * USD)
    reserve(organization, 100)
    reserve(organization, 3, project.pk)

    assert refusal(organization, 3, project.pk).code == "spend_cap_reserved"
    reserve(organization, 100)


def test_reservations_of_another_organization_do_not_count_towards_a_cap(
    organization: Organization, other_organization: Organization
) -> None:
    make_cap(organization, 5)
    make_cap(other_organization, 5)
    reserve(other_organization, 5)

    reserve(organization, 5)


@pytest.mark.django_db(transaction=True)
def test_of_twenty_concurrent_requests_only_those_that_fit_under_the_cap_are_admitted() -> None:
    organization, admitted = make_organization(), []
    make_cap(organization, 7)

    def request() -> None:
        try:
            with as_tenant(organization.pk, None):
                admitted.append(reserve(organization, 1))
        except ApiError:
            pass
        finally:
            connection.close()

    threads = [threading.Thread(target=request) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(admitted) == 7
