"""Invoices: what the organization owes for a calendar month (UTC), computed from the usage ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.drivers import Steps, procedure
from slipstream.files import save
from slipstream.http import D, Resource, path_of
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice(Record):
    """Amounts, prices and quantities are decimal digits in strings, such as "12.50", for `decimal.Decimal`."""

    id: str  # the month, such as "2026-01"
    currency: str
    total: str  # the sum of the lines' amounts
    is_closed: bool  # False: the invoice may still change
    closes_at: int
    lines: Sequence[Mapping[str, Any]]


class Invoices(Resource[D]):
    @procedure
    def retrieve(self, month: str) -> Steps[Invoice]:
        """Args: month: such as "2026-01"; the current month's invoice has the usage so far."""
        return self.http.get(Invoice, path_of("invoices", month))

    @procedure
    def csv(self, month: str, to: Path | str) -> Steps[Path]:
        """Write the lines of the month's invoice to the file `to`, which appears there complete or not at all."""
        return save(self.http, path_of("invoices", month, "csv"), Path(to))
