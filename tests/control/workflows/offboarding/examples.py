"""Example objects and request bodies of exports and deletions of organizations, for the tests that cover all routes."""

from datetime import timedelta

from django.utils import timezone

from control.workflows.offboarding.models import OrganizationExport
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def organization_export(world: World) -> OrganizationExport:
    """Makes only the row, because an organization has only one export at a time."""
    in_a_week = timezone.now() + timedelta(days=7)
    return OrganizationExport.objects.create(organization=world.organization, expires_at=in_a_week)


IDS: Ids = {"export_id": lambda world: world.organization_export.pk}
BODIES: Bodies = {
    "POST /v1/organization/exports": NO_BODY,
    "POST /v1/organization/deletion": Body(lambda world: {"name": world.organization.name}),
}
