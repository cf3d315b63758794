"""Selectors for the thresholds of an organization or project, and for reached thresholds that are not reported yet."""

import datetime as dt

from django.db.models import BigIntegerField, Case, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce

from control.billing.ledger.months import end_of
from control.billing.spending.models import SpendCap
from control.billing.spending.selectors import month_start
from control.billing.thresholds.models import Threshold, ThresholdReport
from control.billing.usage.models import MonthlySpend
from control.tenants.accounts.models import Organization, Project
from control.tenants.accounts.projects import visible

_PROJECT = Coalesce(OuterRef("project_id"), Value(""))


def thresholds_of(organization: Organization, project: Project | None) -> QuerySet[Threshold]:
    """Returns the thresholds in the order of their values.

    `reached_at` of a threshold is the time at which it was reported this month, or None if it was not reported.

    Args: project: None: the thresholds of the whole organization.
    """
    reports = _reports(month_start().date()).values("created_at")[:1]
    thresholds = Threshold.objects.filter(visible(organization), project=project)
    return thresholds.annotate(reached_at=Subquery(reports)).order_by("unit", "value")


def thresholds_to_report(month: dt.date) -> QuerySet[Threshold]:
    """Returns the thresholds, of all organizations, that were reached in the month but are not reported yet.

    The attribute `spent` of each threshold is the amount spent in the month. Thresholds that were created after the
    month are left out.
    """
    spent = MonthlySpend.objects.filter(organization=OuterRef("organization"), project_id=_PROJECT, month=month)
    caps = SpendCap.objects.filter(organization=OuterRef("organization"))
    cap_of_project, cap_of_all = caps.filter(project=OuterRef("project")), caps.filter(project=None)
    # The product must fit into 64 bits. Therefore `percent` is 0 for a threshold in dollars, and the cap is divided by
    # 100 before it is multiplied.
    percent = Case(When(unit=Threshold.Unit.PERCENT, then=F("value")), default=Value(0))
    cap = Case(When(project=None, then=F("cap_of_all")), default=F("cap_of_project"))
    share = cap / Value(100, output_field=BigIntegerField()) * percent
    reached = Q(unit=Threshold.Unit.NANOUSD, spent__gte=F("value")) | Q(unit=Threshold.Unit.PERCENT, spent__gte=share)
    return (
        Threshold.objects.filter(created_at__lt=end_of(month))
        .annotate(
            spent=Subquery(spent.values("nanousd")[:1]),
            cap_of_project=Subquery(cap_of_project.values("nanousd")[:1]),
            cap_of_all=Subquery(cap_of_all.values("nanousd")[:1]),
        )
        .filter(reached, ~Exists(_reports(month)))
        .select_related("organization", "project")
    )


def _reports(month: dt.date) -> QuerySet[ThresholdReport]:
    """Returns the reports about the threshold of the outer query."""
    same = {name: OuterRef(name) for name in ("organization", "unit", "value")}
    return ThresholdReport.objects.filter(**same, project_id=_PROJECT, month=month)
