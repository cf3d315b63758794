"""Deletes organizations whose time to cancel the deletion has ended. Workers call `organizations_erase` as a chore.

One call (a round) deletes for a few seconds, in bounded steps. Each step deletes only the rows or objects that it
finds. If the process is killed at any instruction, the next round or another process can therefore continue. Several
processes can run at the same time.

    1. the record of the deletion (`AuditErasure`), after which it cannot be cancelled
    2. stored objects and rows, in an order in which no row refers to a deleted one; the audit log
    3. all objects below the organization's prefix in storage
    4. the organization's row, and once more the objects below its prefix

`KEPT` names the tables whose rows remain.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import structlog
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from control.core.database_clock import from_now
from control.core.storage.backends import get_storage
from control.queue.jobs.models import Job
from control.serving.deployments.models import Replica
from control.tenants.accounts.models import Member, Organization, User
from control.tenants.audit.erasing import audit_log_erase, erasure_begin, erasure_finish
from control.tenants.audit.models import AuditErasure, AuditEvent, AuditExport
from control.workflows.offboarding.tables import OwnedTable, erasure_order, owned_tables

log = structlog.get_logger(__name__)

KEPT: Mapping[str, str] = {
    "ledger.LedgerLine": "accounting: amounts, times and ids, but no names, texts or other personal data",
}
SECONDS_A_ROUND = 5.0  # during a round, the worker runs no other chore
ROWS_A_STEP = 500
OBJECTS_A_STEP = 100
ORGANIZATIONS_A_ROUND = 100
# An attempt that has lost its job may still store objects for a moment.
QUIET_SECONDS = 600.0


class RowsAdded(Exception):
    """Rows of an organization were added while it was erased."""


_Steps = Iterator[None]  # one item after each bounded step


def organizations_erase() -> None:
    deadline = time.monotonic() + SECONDS_A_ROUND
    due = Organization.objects.filter(erase_after__lte=Now()).order_by("erase_after").values_list("pk", flat=True)
    gone = AuditErasure.objects.filter(finished_at=None).order_by("started_at").values_list("pk", flat=True)
    for organization_id in dict.fromkeys([*due[:ORGANIZATIONS_A_ROUND], *gone[:ORGANIZATIONS_A_ROUND]]):
        try:
            for _ in _erase(organization_id):
                if time.monotonic() >= deadline:
                    return
        except Exception:  # one organization's error must not stop the erasure of others; the next round tries again
            log.exception("could not erase an organization", organization_id=organization_id)


def is_quiet(organization_id: str) -> bool:
    """Returns whether no process works for the organization any more."""
    recent = Q(finished_at=None) | Q(finished_at__gt=from_now(-QUIET_SECONDS))
    has_jobs = Job.objects.filter(recent, organization=organization_id).exists()
    processes = Replica.objects.filter(deployment__organization=organization_id, pid__isnull=False)
    return not has_jobs and not processes.exists()


def _erase(organization_id: str) -> _Steps:
    if not is_quiet(organization_id) or erasure_begin(organization_id) is None:
        return
    order = erasure_order([table for table in owned_tables() if table.label not in KEPT])
    for table, column in order.cleared:
        yield from _clear(table.rows(organization_id).exclude(**{column: None}), column)
    for table in order.tables:
        if table.model not in (AuditEvent, AuditExport):
            yield from _delete_rows(table, organization_id)
    while audit_log_erase(organization_id):
        yield
    yield from _empty_folder(organization_id)
    _delete_organization(organization_id, order.tables)
    yield from _empty_folder(organization_id)  # objects that were stored between the previous two steps
    erasure_finish(organization_id)


def _clear(rows: models.QuerySet[Any], column: str) -> _Steps:
    while pks := list(rows.values_list("pk", flat=True)[:ROWS_A_STEP]):
        rows.model._base_manager.filter(pk__in=pks).update(**{column: None})
        yield


def _delete_rows(table: OwnedTable, organization_id: str) -> _Steps:
    while pks := list(table.rows(organization_id).values_list("pk", flat=True)[:ROWS_A_STEP]):
        if table.model is Job:
            for pk in pks:
                yield from _empty_folder(f"jobs/{pk}")
        with transaction.atomic():
            rows = table.model._base_manager.filter(pk__in=pks)
            users = list(rows.values_list("user_id", flat=True)) if table.model is Member else []
            _delete_only(rows)
            _delete_log_entries(table.model, pks)
            # Deletes people who belong to no other organization, except staff, who administer the installation.
            User.objects.filter(pk__in=users, memberships=None, is_staff=False).delete()
        yield


def _delete_only(rows: models.QuerySet[Any]) -> None:
    """Deletes rows by one statement. `delete` would first read the rows of every table that refers to them."""
    rows._raw_delete(rows.db)


def _delete_log_entries(model: type[models.Model], pks: list[Any]) -> None:
    """Deletes the entries about these rows in Django's log of the console, because they contain the rows' names."""
    kind = ContentType.objects.get_for_model(model)
    LogEntry.objects.filter(content_type=kind, object_id__in=[str(pk) for pk in pks]).delete()


def _empty_folder(prefix: str) -> _Steps:
    storage = get_storage()
    while names := storage.some(prefix, limit=OBJECTS_A_STEP):
        for name in names:
            storage.delete(f"{prefix}/{name}")
        yield
    storage.delete_folder(prefix)  # storage on disk still has the folder, which is empty now


@transaction.atomic
def _delete_organization(organization_id: str, tables: tuple[OwnedTable, ...]) -> None:
    """Deletes the organization's row. Raises: RowsAdded: there are new rows, which the next round deletes."""
    Organization.objects.select_for_update().filter(pk=organization_id).first()
    left = [table.label for table in tables if table.rows(organization_id).exists()]
    if left:
        raise RowsAdded(f"rows were added to {left}")
    _delete_only(Organization.objects.filter(pk=organization_id))
    _delete_log_entries(Organization, [organization_id])
