"""Services that write thresholds, and report those that are reached.

The transaction that counts usage also increases the amount spent (`MonthlySpend`). A recurring task of the workers
compares these amounts with the thresholds, so that requests to endpoints do not wait for the comparison. The task also
finds a threshold that was already reached when it was created, or that is reached because its spend cap was lowered.
"""

import datetime as dt
from collections.abc import Collection
from functools import partial
from typing import Any

import structlog
from django.core.mail import EmailMessage
from django.db import IntegrityError, transaction
from django.utils import timezone

from control.billing.ledger.months import closes_at, month_of, previous_month
from control.billing.spending.selectors import format_usd
from control.billing.thresholds.event_types import THRESHOLD_REACHED
from control.billing.thresholds.models import Threshold, ThresholdReport
from control.billing.thresholds.selectors import thresholds_to_report
from control.core.mail import send_later
from control.core.settings.config import get_config
from control.tenants.accounts.models import Member, Organization, Project
from control.tenants.audit.record import audited
from control.tenants.events.services import event_record
from control.tenants.row_security.each import each_as_tenant

log = structlog.get_logger(__name__)
MAX_THRESHOLDS = 5
REPORTS_A_RUN = 500


@audited("spending_thresholds.set")
@transaction.atomic
def thresholds_set(
    *, organization: Organization, project: Project | None, values: Collection[tuple[Threshold.Unit, int]]
) -> Organization | Project:
    """Replaces the thresholds of the organization or project. Existing thresholds that are also in `values` are kept.

    Args: values: at most `MAX_THRESHOLDS`.
    Returns: the organization or project, to which the audit event refers.
    """
    Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
    existing = {
        (one.unit, one.value): one for one in Threshold.objects.filter(organization=organization, project=project)
    }
    gone = [row.pk for value, row in existing.items() if value not in values]
    Threshold.objects.filter(pk__in=gone).delete()
    for unit, value in set(values) - set(existing):
        Threshold.objects.create(organization=organization, project=project, unit=unit, value=value)
    return project or organization


def thresholds_report() -> None:
    """Reports each threshold that is reached, once a month. A report is an event with its webhooks, and a mail.

    Thresholds of the previous month are also checked until that month is closed, because usage may be counted late.
    """
    now = timezone.now()
    month = month_of(now)
    months = [month]
    if now < closes_at(previous := previous_month(month)):
        months.append(previous)
    for each in months:
        each_as_tenant(
            thresholds_to_report(each)[:REPORTS_A_RUN],
            partial(_report, each),
            failure="could not report a spending threshold",
            name="threshold_id",
            project_of=lambda _: None,
        )


def _report(month: dt.date, threshold: Threshold) -> None:
    threshold_report(threshold=threshold, month=month)


@transaction.atomic
def threshold_report(*, threshold: Any, month: dt.date) -> bool:
    """Reports one threshold, which `thresholds_to_report` has returned.

    Returns: False if the threshold has been deleted or reported meanwhile.
    """
    if Threshold.objects.select_for_update().filter(pk=threshold.pk).first() is None:
        return False
    try:
        with transaction.atomic():
            ThresholdReport.objects.create(
                organization=threshold.organization,
                project_id=threshold.project_id or "",
                unit=threshold.unit,
                value=threshold.value,
                month=month,
                spent_nanousd=threshold.spent,
            )
    except IntegrityError:
        return False
    event_record(
        organization_id=threshold.organization_id,
        project_id=threshold.project_id,
        type=THRESHOLD_REACHED,
        object_id=threshold.pk,
    )
    _send_mail(threshold, month)
    return True


def _send_mail(threshold: Any, month: dt.date) -> None:
    """Sends one mail to the owners and billing members who have signed in."""
    roles = (Member.Role.OWNER, Member.Role.BILLING)
    members = Member.objects.filter(organization=threshold.organization, role__in=roles).select_related("user")
    joined = [member.user for member in members if member.has_joined and member.user.is_active]
    if not joined:
        return
    whose = threshold.organization.name
    if threshold.project is not None:
        whose = f"The project {threshold.project.name} of {whose}"
    subject = " ".join(f"{whose} has reached {threshold} in {month:%Y-%m}".split())  # a header cannot have line breaks
    text = (
        f"{whose} has spent {format_usd(threshold.spent)} in {month:%Y-%m} (UTC). You asked to be told at {threshold}."
        f"\n\n{get_config().public_url}/admin/\n"
    )
    send_later(EmailMessage(subject, text, to=[user.email or user.username for user in joined]))
