"""Parses the month in the path of an invoice, its `period`."""

import datetime as dt
import re

from django.utils import timezone

from control.billing.ledger.months import month_of
from control.core.api.errors import ApiError


def parse_invoice_month(text: str) -> dt.date:
    """Returns the month's first day. Raises: ApiError: 404, the text is no month, or the month has not begun."""
    if re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", text) and text >= "1970":
        month = dt.date.fromisoformat(f"{text}-01")
        if month <= month_of(timezone.now()):
            return month
    message = f"There is no invoice {text[:40]!r}; the form is 2026-01, and the month must have begun."
    raise ApiError(404, message, "invoice_not_found", "period")
