"""Images that pages of the console embed."""

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from control.core.storage.backends import ObjectMissing
from control.models.catalog.models import Speculator
from control.operations.console.base import rows_of
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
