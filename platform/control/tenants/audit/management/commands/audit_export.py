"""`manage.py audit_export MONTH FILE [--drop]` exports the audit events that belong to no organization."""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from control.core.api.errors import ApiError
from control.tenants.audit.exporting import MonthExport, parse_month
from control.tenants.audit.models import AuditEvent
from control.tenants.audit.services import audit_month_drop
from control.tenants.row_security.scope import Across, across_tenants


class Command(BaseCommand):
    help = "Exports the installation's own audit events of a month. Organizations export theirs with the API."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("month", help="A month (UTC) that has ended, such as 2026-01.")
        parser.add_argument("file", type=Path, help="A new file for the events, one JSON object per line.")
        parser.add_argument("--drop", action="store_true", help="Delete the events when the file is complete.")

    def handle(self, *, month: str, file: Path, drop: bool, **_: Any) -> None:
        try:
            export = MonthExport(None, parse_month(month))
            with across_tenants(Across.COMMAND):
                _write(export, file)
                assert export.record is not None, "the receipt is written last"
                if drop:
                    with transaction.atomic():
                        audit_month_drop(export=export.record)
                        _record_drop(export.record.pk)
        except (ApiError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{export.record.num_events} events, SHA-256 {export.record.sha256}")


def _write(export: MonthExport, path: Path) -> None:
    with path.open("xb") as file:
        while lines := export.read():
            file.write(lines)
        file.flush()
        os.fsync(file.fileno())  # the events may be deleted next


def _record_drop(export_id: str) -> None:
    """Writes the audit event of the deletion, because `audited` services write events for requests only."""
    AuditEvent.objects.create(
        actor_type=AuditEvent.Actor.USER,
        actor_id="manage.py",
        action="audit_log.drop",
        object_type="auditexport",
        object_id=export_id,
        request_id="",
    )
