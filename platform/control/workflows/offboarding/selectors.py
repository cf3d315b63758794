"""Selectors for exports of organizations. They do not return expired exports."""

from django.db.models import QuerySet
from django.db.models.functions import Now

from control.core.api.lookup import one_of
from control.tenants.accounts.models import Organization
from control.tenants.row_security.scope import current_project
from control.workflows.offboarding.models import OrganizationExport


def organization_exports_list(organization: Organization) -> QuerySet[OrganizationExport]:
    """Returns the organization's exports. A key of a project sees none, because they contain every project's data."""
    exports = OrganizationExport.objects.filter(organization=organization, expires_at__gt=Now())
    return exports if current_project() is None else exports.none()


def organization_export_get(organization: Organization, export_id: str) -> OrganizationExport:
    """Raises: ApiError: 404, also for another organization's export."""
    return one_of(organization_exports_list(organization), export_id, kind="organization export", param="export_id")
