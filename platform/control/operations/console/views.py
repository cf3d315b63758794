"""Images that pages of the console embed."""

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from control.core.storage.backends import ObjectMissing
from control.models.catalog.models import Speculator
from control.workflows.speculators.plots import EVALUATION, plot_response


def speculator_plot(request: HttpRequest, speculator_id: str) -> HttpResponseBase:
    """A plot of the speculator, by name. The console's sign-in and the permission to view speculators are required."""
    speculator = Speculator.objects.filter(pk=speculator_id).first()
    if speculator is None or not request.user.has_perm("catalog.view_speculator"):
        raise Http404
    try:
        return plot_response(speculator, request.GET.get("name", EVALUATION))
    except ObjectMissing as error:
        raise Http404 from error
