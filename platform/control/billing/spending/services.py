"""Services that write spend caps."""

from django.db import IntegrityError, transaction

from control.billing.spending.models import SpendCap
from control.billing.spending.signals import spend_cap_lifted
from control.core.api.errors import ApiError
from control.tenants.accounts.models import Organization, Project
from control.tenants.audit.record import audited


@audited("spend_cap.create")
def spend_cap_create(*, organization: Organization, project: Project | None, nanousd: int) -> SpendCap:
    """Creates a cap. Running jobs that exceed it are paused after their current shard.

    Raises: ApiError: 409, a cap exists.
    """
    try:
        with transaction.atomic():
            return SpendCap.objects.create(organization=organization, project=project, nanousd=nanousd)
    except IntegrityError as error:
        whose = "Your organization" if project is None else f"The project {project.pk}"
        message = f"{whose} already has a spend cap; change that one."
        raise ApiError(409, message, "spend_cap_exists", "project_id") from error


@audited("spend_cap.update")
@transaction.atomic
def spend_cap_update(*, cap: SpendCap, nanousd: int) -> SpendCap:
    """Changes the amount of a cap. Effects: paused jobs that the new cap allows are queued again."""
    SpendCap.objects.filter(pk=cap.pk).update(nanousd=nanousd)
    cap.refresh_from_db()
    spend_cap_lifted.send(SpendCap, organization_id=cap.organization_id)
    return cap


@audited("spend_cap.delete")
@transaction.atomic
def spend_cap_delete(*, cap: SpendCap) -> None:
    """Deletes a cap. Effects: paused jobs that no other cap stops are queued again."""
    organization_id = cap.organization_id
    cap.delete()
    spend_cap_lifted.send(SpendCap, organization_id=organization_id)
