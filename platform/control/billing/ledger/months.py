"""The months (UTC) of invoices, and when they are closed.

A month is closed 24 hours after its end. A line of the ledger belongs to the invoice of the month in which the use
ended, if the line is written before this month is closed. A line that is written later belongs to the invoice of the
month in which it is written. Each line is therefore on exactly one invoice, and the invoice of a closed month does not
change. The statement that writes the line determines the month by the database's clock.
"""

import datetime as dt

from django.db.models import Case, DateField, Q, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Now, TruncMonth
from django.db.models.lookups import GreaterThanOrEqual
from django.utils import timezone

CLOSED_AFTER = dt.timedelta(hours=24)
# A transaction that writes its lines just before the month is closed may commit up to this long after the close.
_COMMITTED_AFTER = dt.timedelta(minutes=5)


def month_of(moment: dt.datetime) -> dt.date:
    """Returns the first day of the month (UTC)."""
    return moment.astimezone(dt.UTC).date().replace(day=1)


def start_of(month: dt.date) -> dt.datetime:
    return dt.datetime(month.year, month.month, 1, tzinfo=dt.UTC)


def end_of(month: dt.date) -> dt.datetime:
    """Returns the start of the following month."""
    return start_of((month.replace(day=28) + dt.timedelta(days=4)).replace(day=1))


def previous_month(month: dt.date) -> dt.date:
    return month_of(start_of(month) - dt.timedelta(days=1))


def closes_at(month: dt.date) -> dt.datetime:
    return end_of(month) + CLOSED_AFTER


def is_closed(month: dt.date) -> bool:
    """Returns whether the invoice of the month can no longer change."""
    return timezone.now() >= closes_at(month) + _COMMITTED_AFTER


def billed_month_of(ended_at: dt.datetime) -> Combinable:
    """Returns the value of `LedgerLine.billed_month` for a line that is written now."""
    is_late = GreaterThanOrEqual(Now(), Value(closes_at(month_of(ended_at))))
    this_month = TruncMonth(Now(), output_field=DateField(), tzinfo=dt.UTC)
    return Case(When(is_late, then=this_month), default=None, output_field=DateField())


def billed_in(month: dt.date) -> Q:
    """Returns a condition that matches the lines on the invoice of the month."""
    in_time = Q(billed_month=None, ended_at__gte=start_of(month), ended_at__lt=end_of(month))
    return in_time | Q(billed_month=month)
