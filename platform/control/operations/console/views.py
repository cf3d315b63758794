"""Images that pages of the console embed, and files to which they link."""

from django.db.models.functions import Now
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from control.core.api.errors import ApiError
from control.core.storage.backends import ObjectMissing
from control.models.catalog.models import Speculator
from control.operations.console.base import rows_of
from control.operations.console.visitors import member_of
from control.tenants.accounts.models import Organization
from control.workflows.invoices.lines import invoice_of
from control.workflows.invoices.months import parse_invoice_month
from control.workflows.invoices.table import CsvResponse
from control.workflows.offboarding.models import OrganizationExport
from control.workflows.offboarding.streaming import ArchiveResponse
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


def organization_export(request: HttpRequest, export_id: str) -> HttpResponseBase:
    """Answers with the archive of a complete export to owners of its organization. Operators get none, because it
    contains text of customers."""
    if member_of(request) is None:
        raise Http404
    completed = rows_of(OrganizationExport, request).filter(status=OrganizationExport.Status.COMPLETED)
    export = completed.filter(pk=export_id, expires_at__gt=Now()).first()
    if export is None:
        raise Http404
    return ArchiveResponse(export)
