"""Services that request and delete exports, and that request and cancel the deletion of an organization.

`exporting`, `draining` and `erasing` do the work afterwards.
"""

from django.db import transaction
from django.db.models.functions import Now

from control.core.api.errors import ApiError
from control.core.database_clock import from_now
from control.core.settings.config import get_config
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited, current_actor
from control.tenants.quotas.quota import organization_lock
from control.workflows.offboarding.exporting import KEPT
from control.workflows.offboarding.models import OrganizationExport


@audited("organization_export.create")
@transaction.atomic
def organization_export_create(*, organization: Organization) -> OrganizationExport:
    """Requests an archive of everything that the organization has.

    Archives do not count towards the storage limit, so an organization has only one at a time.

    Raises: ApiError: 409, the organization has an export.
    """
    organization_lock(organization.pk)
    existing = OrganizationExport.objects.filter(organization=organization, expires_at__gt=Now()).first()
    if existing is not None:
        message = f"The organization has the export {existing.pk}. Delete it before you request another one."
        raise ApiError(409, message, "export_exists")
    export = OrganizationExport.objects.create(organization=organization, expires_at=from_now(KEPT.total_seconds()))
    export.refresh_from_db()
    return export


@audited("organization_export.delete")
def organization_export_delete(*, export: OrganizationExport) -> None:
    """Ends the export, complete or not. Its archive is no longer found, and a chore deletes the parts."""
    OrganizationExport.objects.filter(pk=export.pk, expires_at__gt=Now()).update(expires_at=Now())


@audited("organization.request_deletion")
@transaction.atomic
def organization_deletion_request(*, organization: Organization, name: str) -> Organization:
    """Requests that the organization and all that it has be deleted. Its API keys are refused from now on.

    A repeated call changes nothing.

    Args: name: the organization's name, which confirms the request.
    Raises: ApiError: 400, the name is wrong.
    """
    if name != organization.name:
        message = "name must be the exact name of the organization, to confirm that everything in it is to be deleted."
        raise ApiError(400, message, "name_mismatch", "name")
    Organization.objects.filter(pk=organization.pk, deletion_requested_at=None).update(
        deletion_requested_at=Now(),
        deletion_requested_by=current_actor(organization),
        erase_after=from_now(get_config().deletion_grace_hours * 3600),
    )
    organization.refresh_from_db()
    return organization


@audited("organization.cancel_deletion")
def organization_deletion_cancel(*, organization: Organization) -> Organization:
    """Cancels the deletion: API keys work again. Jobs and deployments that were stopped stay stopped.

    Raises: ApiError: 409, no deletion was requested, or its time to cancel has ended.
    """
    # The update locks the row, so the erasure begins before it or not at all (`audit.erasing.erasure_begin`).
    cancelled = Organization.objects.filter(pk=organization.pk, erase_after__gt=Now()).update(
        deletion_requested_at=None, deletion_requested_by="", erase_after=None
    )
    if not cancelled:
        raise ApiError(409, "There is no deletion that can still be cancelled.", "deletion_not_cancellable")
    organization.refresh_from_db()
    return organization
