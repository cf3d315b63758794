"""Usage is written in batches, and none of it is lost at a shutdown or while the database is unreachable."""

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

import httpx2
import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from control.billing.spending.models import SpendReservation
from control.billing.spending.reservations import spend_reserve
from control.billing.usage.models import UsageRecord
from control.billing.usage.services import Tokens
from control.serving.deployments.models import Deployment
from control.serving.gateway import accounting
from control.serving.gateway.accounting import write
from control.serving.gateway.ended import Ended
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from tests.control.factories import make_organization
from tests.control.serving.gateway.conftest import running_server
from tests.control.serving.gateway.test_gateway import chat

NOON = dt.datetime(2026, 3, 10, 12, 0, 30, tzinfo=dt.UTC)


def ended(organization: Organization, *, reservation_id: str | None = None, model: str = "m") -> Ended:
    return Ended(
        caller=Caller(organization_id=organization.pk),
        model=model,
        at=NOON,
        tokens=Tokens(input=5, output=3),
        reservation_id=reservation_id,
    )


def sums() -> set[tuple[str, int, int]]:
    return set(UsageRecord.objects.values_list("organization_id", "requests", "input_tokens"))


def test_the_usage_of_many_requests_is_written_with_as_many_queries_as_the_usage_of_one_request(
    organization: Organization,
) -> None:
    with CaptureQueriesContext(connection) as one:
        write([ended(organization)])
    with CaptureQueriesContext(connection) as many:
        write([ended(organization)] * 100)

    assert len(many) <= len(one)
    assert sums() == {(organization.pk, 101, 505)}


def test_requests_are_counted_for_the_organization_that_sent_them(
    organization: Organization, other_organization: Organization
) -> None:
    write([ended(organization), ended(other_organization), ended(organization)])

    assert sums() == {(organization.pk, 2, 10), (other_organization.pk, 1, 5)}


def test_if_the_database_cannot_store_the_usage_of_one_organization_the_usage_of_others_is_not_lost(
    organization: Organization, other_organization: Organization
) -> None:
    first, second = sorted([organization, other_organization], key=lambda one: one.pk)  # as `write` does
    too_many = replace(ended(first), tokens=Tokens(input=2**64))  # SQLite: OverflowError; PostgreSQL: DataError

    assert write([too_many, ended(second)]) == []

    assert sums() == {(second.pk, 1, 5)}


def test_writing_the_usage_of_a_request_releases_its_reservation(organization: Organization) -> None:
    reservation_id = spend_reserve(caller=Caller(organization_id=organization.pk), nanousd=1)

    write([ended(organization, reservation_id=reservation_id)])

    assert not SpendReservation.objects.exists()


def test_usage_is_kept_for_another_attempt_while_the_database_is_unreachable(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OperationalError("the connection is closed")

    requests = [ended(organization), ended(organization)]
    with monkeypatch.context() as patched:
        patched.setattr(accounting, "usage_add_all", refuse)
        assert write(requests) == requests

    assert write(requests) == []
    assert sums() == {(organization.pk, 2, 10)}


def test_a_commit_with_an_unknown_outcome_is_not_repeated(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may have committed before the connection was lost; a second attempt would charge twice."""

    @contextmanager
    def lost_at_commit() -> Iterator[None]:
        yield
        raise OperationalError("the connection was lost")

    monkeypatch.setattr("control.serving.gateway.accounting.transaction.atomic", lost_at_commit)
    monkeypatch.setattr(accounting, "usage_add_all", lambda usage: 0)

    assert write([ended(organization)]) == []


@pytest.mark.django_db(transaction=True)
def test_usage_of_a_deleted_organization_does_not_keep_usage_of_others_from_being_written() -> None:
    organization, deleted = make_organization(), make_organization()
    request = ended(deleted)
    deleted.delete()

    assert write([request, ended(organization)]) == []
    assert sums() == {(organization.pk, 1, 5)}


@pytest.mark.usefixtures("deployment")
def test_a_shutdown_writes_usage_at_once(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "WRITE_SECONDS", 3600.0)
    with running_server() as url:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=url, headers=headers, trust_env=False) as client:
            for stream in (False, True):
                assert client.post("/chat/completions", json=chat("hello", stream=stream)).status_code == 200
        assert not UsageRecord.objects.exists()

    assert UsageRecord.objects.get().requests == 2


@pytest.mark.usefixtures("deployment")
def test_a_stream_that_a_shutdown_cuts_off_is_counted(token: str) -> None:
    with httpx2.Client(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        with running_server() as url:
            request = client.build_request("POST", f"{url}/chat/completions", json=chat("linger", stream=True))
            response = client.send(request, stream=True)
            chunks = response.iter_text()
            while "token1" not in next(chunks):
                pass

        response.close()
    assert list(UsageRecord.objects.values_list("requests", "output_tokens")) == [(1, 2)]


def test_failures_of_engines_are_counted(token: str, deployment: Deployment) -> None:
    with running_server() as url:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=url, headers=headers, trust_env=False) as client:
            assert client.post("/chat/completions", json=chat("die at once")).status_code == 502

    deployment.refresh_from_db()
    assert deployment.num_failed == 1
