"""GET /v1/audit_events: who changed what in the organization."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.paging import paginate
from control.core.api.times import unix
from control.tenants.accounts.scopes import ADMIN
from control.tenants.audit.models import AuditEvent
from control.tenants.audit.selectors import audit_events_list
from control.tenants.authentication.views import OrganizationView


def audit_event_body(event: AuditEvent) -> dict[str, Any]:
    return {
        "id": event.pk,
        "object": "audit_event",
        "action": event.action,
        "actor": {"type": event.actor_type, "id": event.actor_id},
        "target": {"type": event.object_type, "id": event.object_id},
        "ip": event.ip,
        "request_id": event.request_id,
        "created_at": unix(event.created_at),
    }


class AuditEventsView(OrganizationView):
    scope = ADMIN

    def get(self, request: Request) -> Response:
        return paginate(audit_events_list(self.organization), request, audit_event_body)
