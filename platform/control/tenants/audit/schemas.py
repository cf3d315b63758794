"""Responses of the audit log."""

from typing import Annotated, Literal, Self

from pydantic import Field

from control.core.api.schemas import RequestModel, ResponseModel, Text, Unix
from control.tenants.audit.models import AuditEvent, AuditExport


class AuditDropInput(RequestModel):
    month: Annotated[str, Text(7)] = Field(description="The month whose events are deleted, for example 2026-01.")
    sha256: Annotated[str, Text(64)] = Field(description="The digest in the last line of the month's export.")


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


class AuditExportObject(ResponseModel):
    id: str
    object: Literal["audit_export"] = "audit_export"
    month: str
    num_events: int
    sha256: str = Field(description="The SHA-256 of all exported lines before this last line.")
    created_at: Unix
    dropped_at: Unix | None

    @classmethod
    def of(cls, export: AuditExport) -> Self:
        return cls.from_row(export, month=f"{export.month:%Y-%m}")
