"""An invoice as a CSV file."""

import csv
import io
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any

from django.http import StreamingHttpResponse

from control.workflows.invoices.lines import Invoice, InvoiceLine
from control.workflows.invoices.schemas import CURRENCY, digits, month_name

LINES_A_PIECE = 500
COLUMNS = (
    "invoice", "project_id", "project_name", "object_kind", "model_id", "model_name", "device_kind", "used_in", "unit",
    "quantity", "unit_price", "amount", "currency", "credit_reason",
)  # fmt: skip
# A spreadsheet would execute a text that begins with one of these as a formula. Customers choose names of projects.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class CsvResponse(StreamingHttpResponse):
    """Sends an invoice in pieces. The file's name says whether the invoice may still change."""

    def __init__(self, invoice: Invoice) -> None:
        self._pieces = invoice_csv(invoice)
        name = f"invoice-{month_name(invoice.month)}{'' if invoice.is_closed else '-open'}.csv"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        super().__init__(self._pieces, content_type="text/csv; charset=utf-8", headers=headers)

    async def __aiter__(self) -> AsyncIterator[bytes]:  # ASGI; the pieces are computed without the database
        for piece in self._pieces:
            yield piece


def invoice_csv(invoice: Invoice) -> Iterator[bytes]:
    """Yields a header and one row for each line of the invoice; the amounts add up to its total."""
    yield _rows([COLUMNS])
    for start in range(0, len(invoice.lines), LINES_A_PIECE):
        yield _rows([_row(invoice, line) for line in invoice.lines[start : start + LINES_A_PIECE]])


def _row(invoice: Invoice, line: InvoiceLine) -> list[str]:
    values = {"invoice": month_name(invoice.month), "used_in": month_name(line.used_in), "currency": CURRENCY}
    return [_cell(values[name] if name in values else getattr(line, name)) for name in COLUMNS]


def _cell(value: Any) -> str:
    if isinstance(value, Decimal):
        return digits(value)
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _rows(rows: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)  # RFC 4180: lines end with CR LF
    return text.getvalue().encode()
