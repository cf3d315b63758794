"""Example objects and request bodies of the audit log, for the tests that cover all routes."""

import datetime as dt

from control.tenants.audit.models import AuditExport
from tests.control.world import Bodies, Body, World

MONTH = "2020-01"


def audit_export(world: World) -> AuditExport:
    """The export of a month without events."""
    month = dt.date.fromisoformat(f"{MONTH}-01")
    return AuditExport.objects.create(organization=world.organization, month=month, num_events=0, sha256="0" * 64)


BODIES: Bodies = {
    "POST /v1/audit_events/drop": Body(lambda world: {"month": MONTH, "sha256": world.audit_export.sha256}),
}
