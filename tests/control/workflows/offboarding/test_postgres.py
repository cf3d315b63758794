"""Promise S51 on PostgreSQL, which checks foreign keys, and whose application role may not delete audit events."""

import datetime as dt
from collections.abc import Callable

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditErasure, AuditEvent
from control.tenants.row_security.scope import Across, across_tenants
from control.workflows.offboarding.erasing import organizations_erase
from tests.control.factories import make_organization
from tests.control.workflows.offboarding.support import fill
from tests.control.workflows.offboarding.test_deletion import check_that_nothing_is_left, request_deletion


@pytest.mark.usefixtures("own_data_dir", "postgres")
def test_nothing_of_a_deleted_organization_is_left_on_postgresql() -> None:
    with across_tenants(Across.COMMAND):
        check_that_nothing_is_left()


@pytest.mark.usefixtures("own_data_dir", "postgres")
def test_postgresql_protects_the_audit_log_of_an_organization_that_is_not_due_and_the_record_of_an_erasure() -> None:
    with across_tenants(Across.COMMAND):
        check_protection()


@pytest.mark.django_db
@pytest.mark.usefixtures("own_data_dir")
def test_sqlite_protects_the_audit_log_and_the_record_of_an_erasure_too() -> None:
    check_protection()


def check_protection() -> None:
    organization, erased = make_organization(), make_organization()
    fill(organization)
    fill(erased)
    request_deletion(organization)
    request_deletion(erased)
    past = timezone.now() - dt.timedelta(seconds=1)
    Organization.objects.filter(pk=erased.pk).update(erase_after=past)
    organizations_erase()
    num_events = AuditEvent.objects.filter(organization=organization).count()
    values = {"requested_by": "x", "requested_at": past, "num_events": 0}
    record = AuditErasure.objects.filter(pk=erased.pk)
    assert record.get().finished_at is not None

    forbidden: list[Callable[[], object]] = [
        lambda: AuditErasure.objects.create(organization_id=organization.pk, **values),
        lambda: AuditErasure.objects.create(organization_id="org_unknown", **values),
        lambda: AuditEvent.objects.filter(organization=organization)._raw_delete(connection.alias),
        lambda: record.update(requested_by="y"),
        lambda: record.update(rounds=99),
        lambda: record.update(finished_at=None),
        lambda: record._raw_delete(connection.alias),
    ]
    for statement in forbidden:
        with pytest.raises(DatabaseError), transaction.atomic():
            statement()
    assert AuditEvent.objects.filter(organization=organization).count() == num_events > 0
