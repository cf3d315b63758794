"""GET /v1/audit_events: who changed what in the organization."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from control.accounts.scopes import ADMIN
from control.api.auth import OrganizationView
from control.api.paging import paginate
from control.api.times import unix
from control.audit.models import AuditEvent
from control.audit.selectors import audit_events_list


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
