"""/v1/invoices: what the organization owes for a month, as JSON and as CSV."""

from rest_framework.request import Request

from control.core.api.operation import CSV, operation
from control.tenants.authentication.views import OrganizationView
from control.workflows.invoices.lines import invoice_of
from control.workflows.invoices.months import parse_invoice_month
from control.workflows.invoices.schemas import InvoiceObject
from control.workflows.invoices.table import CsvResponse


class InvoiceView(OrganizationView):
    scope = "usage"

    @operation("invoices.retrieve", response=InvoiceObject)
    def get(self, request: Request, period: str) -> InvoiceObject:
        """The invoice of a month (UTC) such as `2026-01`. The current month's invoice contains the usage so far.

        There is one line for each combination of project, kind of object, base model or kind of device, unit and
        price. A project's key gets only the lines of the project.
        """
        return InvoiceObject.of(invoice_of(self.organization, parse_invoice_month(period)))


class InvoiceCsvView(OrganizationView):
    scope = "usage"

    @operation("invoices.csv", summary="Download an invoice as CSV", response=CSV)
    def get(self, request: Request, period: str) -> CsvResponse:
        """The lines of the invoice of a month as a CSV file with a header; their amounts add up to the total."""
        return CsvResponse(invoice_of(self.organization, parse_invoice_month(period)))
