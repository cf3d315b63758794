"""Writes a month of an organization's audit log as JSON lines, one for each event.

The last line is the receipt: the record of the export, with the SHA-256 of all lines before it. The record is created
only after all events were read. A request to drop the month must state this digest.
"""

import datetime as dt
import hashlib
import json
import re
from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from django.utils import timezone

from control.core.api.errors import ApiError
from control.core.api.schemas import ResponseModel
from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditExport
from control.tenants.audit.schemas import AuditEventObject, AuditExportObject
from control.tenants.audit.selectors import audit_month
from control.tenants.row_security.scope import Across, across_tenants, as_tenant

EVENTS_A_READ = 500


def parse_month(text: str) -> dt.date:
    """Returns the month's first day. Raises: ApiError: 400, the text is no month, or the month has not ended."""
    if not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", text) or text < "1970":
        raise ApiError(400, f"month must have the form 2026-01, got {text[:40]!r}", "invalid_value", "month")
    if text >= f"{timezone.now().astimezone(dt.UTC):%Y-%m}":
        raise ApiError(400, f"The month {text} has not ended.", "month_not_ended", "month")
    return dt.date.fromisoformat(f"{text}-01")


class MonthExport:
    def __init__(self, organization: Organization | None, month: dt.date) -> None:
        """Args: organization: None: events that belong to no organization."""
        self.record: AuditExport | None = None  # set with the receipt
        self._organization = organization
        self._month = month
        self._hash = hashlib.sha256()
        self._num_events = 0
        self._last_id = ""

    def read(self) -> bytes:
        """Returns the next lines; after the receipt, returns no bytes."""
        if self.record is not None:
            return b""
        scope = across_tenants(Across.COMMAND) if self._organization is None else as_tenant(self._organization.pk, None)
        with scope:  # a stream is read after the request's own tenant context ended
            unread = audit_month(self._organization, self._month).filter(pk__gt=self._last_id)
            events = list(unread.order_by("pk")[:EVENTS_A_READ])
            if not events:
                return self._receipt()
        lines = b"".join(_line(AuditEventObject.of(event)) for event in events)
        self._hash.update(lines)
        self._num_events += len(events)
        self._last_id = events[-1].pk
        return lines

    def _receipt(self) -> bytes:
        self.record = AuditExport.objects.create(
            organization=self._organization,
            month=self._month,
            num_events=self._num_events,
            sha256=self._hash.hexdigest(),
        )
        return _line(AuditExportObject.of(self.record))


class MonthResponse(StreamingHttpResponse):
    def __init__(self, export: MonthExport) -> None:
        self._export = export
        super().__init__(iter(export.read, b""), content_type="application/x-ndjson")

    async def __aiter__(self) -> AsyncIterator[bytes]:  # ASGI
        while lines := await sync_to_async(self._export.read)():
            yield lines


def _line(value: ResponseModel) -> bytes:
    return json.dumps(value.as_json(), separators=(",", ":")).encode() + b"\n"
