"""What pages of the console embed."""

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from control.catalog.models import Speculator
from control.files.streaming import StoredFileResponse
from control.storage import ObjectMissing


def speculator_plot(request: HttpRequest, speculator_id: str) -> HttpResponseBase:
    """The latest evaluation's plot, for whoever may see the speculator. Behind the console's sign-in."""
    speculator = Speculator.objects.filter(pk=speculator_id).exclude(plot_key="").first()
    if speculator is None or not request.user.has_perm("catalog.view_speculator"):
        raise Http404
    try:
        return StoredFileResponse(speculator.plot_key, filename=f"{speculator.pk}.png", content_type="image/png")
    except ObjectMissing as error:
        raise Http404 from error
