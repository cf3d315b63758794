"""GET /v1/audit_events: the changes that keys and operators made in the organization."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.tenants.accounts.scopes import ADMIN
from control.tenants.audit.schemas import AuditEventObject
from control.tenants.audit.selectors import audit_events_list
from control.tenants.authentication.views import OrganizationView


class AuditEventsView(OrganizationView):
    scope = ADMIN
    project_keys = "are refused"

    @operation("audit_events.list", response=Page[AuditEventObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(audit_events_list(self.organization), request, AuditEventObject.of)
