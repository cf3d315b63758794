"""Whole months of the audit log are exported and then dropped, and nothing else is ever deleted."""

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, transaction
from django.test import Client
from django.utils import timezone

from control.tenants.accounts.models import Organization
from control.tenants.audit import exporting
from control.tenants.audit.models import AuditEvent, AuditExport
from control.tenants.row_security.scope import as_tenant
from tests.control.factories import client_of, make_key, make_organization
from tests.databases import needs_postgres

MONTH = "2026-02"
FIRST = dt.datetime(2026, 2, 1, tzinfo=dt.UTC)
NEXT_MONTH = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
LAST = NEXT_MONTH - dt.timedelta(microseconds=1)


def make_event(organization: Organization | None, at: dt.datetime) -> str:
    """Records an event as if it had happened at the time `at`. Returns: its id."""
    created_at = AuditEvent._meta.get_field("created_at")
    created_at.auto_now_add = False
    try:
        values = {"actor_type": "user", "actor_id": "root", "action": "file.create", "object_type": "file"}
        event = AuditEvent.objects.create(
            organization=organization, object_id="file-1", request_id="req", created_at=at, **values
        )
    finally:
        created_at.auto_now_add = True
    return event.pk


def export(client: Client, month: str = MONTH) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the events and the receipt."""
    response: Any = client.get(f"/v1/audit_events/export?month={month}")
    assert response.status_code == 200, response.content
    *lines, receipt = b"".join(response).splitlines(keepends=True)
    assert json.loads(receipt)["sha256"] == hashlib.sha256(b"".join(lines)).hexdigest()
    return [json.loads(line) for line in lines], json.loads(receipt)


def drop(client: Client, sha256: str, month: str = MONTH) -> Any:
    body = {"month": month, "sha256": sha256}
    return client.post("/v1/audit_events/drop", body, content_type="application/json")


def events_left() -> set[str]:
    return set(AuditEvent.objects.exclude(action="audit_log.drop").values_list("pk", flat=True))


def test_exactly_the_exported_month_of_the_organization_is_dropped_and_the_drop_is_recorded(
    client: Client, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "EVENTS_A_READ", 2)
    own = [make_event(organization, at) for at in (FIRST, FIRST, FIRST + dt.timedelta(days=9), LAST, LAST)]
    before, after = make_event(organization, FIRST - dt.timedelta(seconds=1)), make_event(organization, NEXT_MONTH)
    foreign, shared = make_event(make_organization(), FIRST), make_event(None, FIRST)

    events, receipt = export(client)
    assert [event["id"] for event in events] == sorted(own)
    assert (receipt["month"], receipt["num_events"], receipt["dropped_at"]) == (MONTH, 5, None)
    dropped = drop(client, receipt["sha256"])

    assert dropped.status_code == 200, dropped.content
    assert dropped.json()["dropped_at"] is not None
    assert events_left() == {before, after, foreign, shared}
    recorded = AuditEvent.objects.get(action="audit_log.drop")
    assert (recorded.organization, recorded.object_id) == (organization, receipt["id"])


def test_a_month_that_was_not_exported_is_not_dropped(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    mine, foreign = make_event(organization, FIRST), make_event(other_organization, FIRST)
    _, foreign_receipt = export(client_of(other_organization))
    export(client, "2026-01")

    for sha256 in ("0" * 64, foreign_receipt["sha256"]):
        refused = drop(client, sha256)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "audit_month_not_exported")

    export(client)
    assert drop(client, "0" * 64).status_code == 409  # a client that has not read the export does not know its hash
    assert events_left() == {mine, foreign}


def test_an_export_that_was_read_only_in_part_does_not_permit_dropping_the_month(
    client: Client, organization: Organization
) -> None:
    make_event(organization, FIRST)
    response: Any = client.get(f"/v1/audit_events/export?month={MONTH}")

    next(iter(response))

    assert not AuditExport.objects.exists()


def test_a_month_with_an_event_that_the_export_lacks_is_not_dropped(client: Client, organization: Organization) -> None:
    make_event(organization, FIRST)
    _, receipt = export(client)
    # Such an event exists if its transaction began before the end of the month and ended after the export.
    make_event(organization, LAST)

    refused = drop(client, receipt["sha256"])

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "audit_month_changed")
    assert len(events_left()) == 2
    _, receipt = export(client)
    assert drop(client, receipt["sha256"]).status_code == 200
    assert drop(client, receipt["sha256"]).json()["error"]["code"] == "audit_month_not_exported"


@pytest.mark.parametrize(
    ("month", "code"), [("now", "month_not_ended"), ("2026-13", "invalid_value"), ("", "invalid_value")]
)
def test_the_current_month_and_texts_that_are_no_month_are_refused(client: Client, month: str, code: str) -> None:
    month = f"{timezone.now():%Y-%m}" if month == "now" else month

    assert client.get(f"/v1/audit_events/export?month={month}").json()["error"]["code"] == code
    if month:
        assert drop(client, "0" * 64, month).json()["error"]["code"] == code


def test_a_key_without_the_scope_admin_can_neither_export_nor_drop_a_month(organization: Organization) -> None:
    _, token = make_key(organization, scopes=["usage:*", "files:*"])
    client = Client(headers={"Authorization": f"Bearer {token}"})

    assert client.get(f"/v1/audit_events/export?month={MONTH}").status_code == 403
    assert drop(client, "0" * 64).status_code == 403


def change_export(**values: Any) -> object:
    return AuditExport.objects.update(**values)


@pytest.mark.parametrize(
    ("statement", "num_events", "is_this_month"),
    [
        pytest.param(lambda: AuditEvent.objects.all()._raw_delete("default"), 1, False, id="one event"),
        pytest.param(lambda: change_export(dropped_at=timezone.now()), 7, False, id="a part of the exported events"),
        pytest.param(lambda: change_export(dropped_at=timezone.now()), 0, True, id="the current month"),
        pytest.param(lambda: change_export(month=dt.date(2026, 1, 1)), 1, False, id="a changed export"),
        pytest.param(lambda: change_export(dropped_at=timezone.now(), num_events=1), 7, False, id="a changed number"),
        pytest.param(lambda: AuditExport.objects.all()._raw_delete("default"), 1, False, id="an export"),
    ],
)
def test_the_database_refuses_every_deletion_except_that_of_a_whole_exported_month(
    organization: Organization, statement: Callable[[], object], num_events: int, is_this_month: bool
) -> None:
    """The deletion is refused even if the statement comes from code that does not use the services."""
    month = timezone.now().date().replace(day=1) if is_this_month else FIRST.date()
    make_event(organization, FIRST)
    values = {"organization": organization, "month": month, "num_events": num_events, "sha256": "0" * 64}
    export_before = AuditExport.objects.create(**values)

    with pytest.raises(DatabaseError), transaction.atomic():
        statement()
    with pytest.raises(DatabaseError), transaction.atomic():
        AuditExport.objects.create(**values, dropped_at=timezone.now())

    assert AuditEvent.objects.count() == 1
    left = AuditExport.objects.values("month", "num_events", "dropped_at").get()
    assert left == {"month": month, "num_events": export_before.num_events, "dropped_at": None}


@pytest.mark.parametrize("database_kind", [needs_postgres("postgresql")])
def test_the_database_role_of_the_service_can_drop_a_month_of_the_tenant_but_no_single_event(
    postgres: str, database_kind: str
) -> None:
    organization, other = make_organization(), make_organization()
    make_event(organization, FIRST)
    foreign = make_event(other, FIRST)

    with as_tenant(organization.pk, None):
        with pytest.raises(DatabaseError), transaction.atomic():
            AuditEvent.objects.all()._raw_delete("default")
        values = {"month": FIRST.date(), "num_events": 1, "sha256": "0" * 64}
        record = AuditExport.objects.create(organization=organization, **values)
        AuditExport.objects.filter(pk=record.pk).update(dropped_at=timezone.now())

    assert events_left() == {foreign}


def test_operators_export_and_drop_the_events_that_belong_to_no_organization(
    organization: Organization, tmp_path: Path
) -> None:
    make_event(None, FIRST)
    kept = make_event(organization, FIRST)

    call_command("audit_export", MONTH, tmp_path / "events.jsonl")
    assert len(events_left()) == 2
    with pytest.raises(CommandError):
        call_command("audit_export", MONTH, tmp_path / "events.jsonl", drop=True)  # it overwrites no file
    call_command("audit_export", MONTH, tmp_path / "again.jsonl", drop=True)

    assert events_left() == {kept}
    event, receipt = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (event["action"], receipt["num_events"]) == ("file.create", 1)
    assert AuditEvent.objects.get(action="audit_log.drop").actor_id == "manage.py"
