"""/v1/audit_events: the changes that keys and operators made in the organization."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import LINES, PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.tenants.accounts.scopes import ADMIN
from control.tenants.audit.exporting import MonthExport, MonthResponse, parse_month
from control.tenants.audit.schemas import AuditDropInput, AuditEventObject, AuditExportObject
from control.tenants.audit.selectors import audit_events_list, audit_export_get
from control.tenants.audit.services import audit_month_drop
from control.tenants.authentication.views import OrganizationView


class AuditEventsView(OrganizationView):
    scope = ADMIN
    project_keys = "are refused"

    @operation("audit_events.list", response=Page[AuditEventObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(audit_events_list(self.organization), request, AuditEventObject.of)


class AuditExportView(OrganizationView):
    scope = ADMIN

    @operation(
        "audit_events.export",
        summary="Export a month of audit events",
        response=LINES,
        query={"month": "A month (UTC) that has ended, such as 2026-01."},
    )
    def get(self, request: Request) -> MonthResponse:
        """The events of a month, oldest first, one per line. The last line contains their digest."""
        return MonthResponse(MonthExport(self.organization, parse_month(request.query_params.get("month", ""))))


class AuditDropView(OrganizationView):
    scope = ADMIN

    @operation(
        "audit_events.drop",
        summary="Delete an exported month of audit events",
        request=AuditDropInput,
        response=AuditExportObject,
    )
    def post(self, request: Request, body: AuditDropInput) -> AuditExportObject:
        """Deletes the events of a month that was exported completely."""
        export = audit_export_get(self.organization, parse_month(body.month), body.sha256)
        return AuditExportObject.of(audit_month_drop(export=export))
