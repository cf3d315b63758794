"""Images that pages of the console embed, and files to which they link."""

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from control.core.api.errors import ApiError
from control.core.storage.backends import ObjectMissing
from control.models.catalog.models import Speculator
from control.operations.console.base import rows_of
from control.tenants.accounts.models import Organization
from control.workflows.invoices.lines import invoice_of
from control.workflows.invoices.months import parse_invoice_month
from control.workflows.invoices.table import CsvResponse
from control.workflows.speculators.plots import EVALUATION, plot_response


def speculator_plot(request: HttpRequest, speculator_id: str) -> HttpResponseBase:
    """Answers with a plot of a speculator that the caller may view. The query parameter `name` selects the plot."""
    speculator = rows_of(Speculator, request).filter(pk=speculator_id).first()
    if speculator is None:
        raise Http404
    try:
        return plot_response(speculator, request.GET.get("name", EVALUATION))
    except ObjectMissing as error:
        raise Http404 from error


def organization_invoice(request: HttpRequest, organization_id: str, month: str) -> HttpResponseBase:
    """Answers with the CSV file of a month's invoice, if the caller may view the organization's usage."""
    organization = rows_of(Organization, request).filter(pk=organization_id).first()
    if organization is None:
        raise Http404
    try:
        return CsvResponse(invoice_of(organization, parse_invoice_month(month)))
    except ApiError as error:
        raise Http404 from error
