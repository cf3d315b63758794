"""Responses of the audit log."""

from typing import Literal, Self

from control.core.api.schemas import ResponseModel, Unix
from control.tenants.audit.models import AuditEvent


class Reference(ResponseModel):
    type: str
    id: str


class AuditEventObject(ResponseModel):
    id: str
    object: Literal["audit_event"] = "audit_event"
    action: str
    actor: Reference
    target: Reference
    ip: str | None
    request_id: str
    created_at: Unix

    @classmethod
    def of(cls, event: AuditEvent) -> Self:
        actor = Reference(type=event.actor_type, id=event.actor_id)
        return cls.from_row(event, actor=actor, target=Reference(type=event.object_type, id=event.object_id))
