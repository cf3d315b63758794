"""Plots of a speculator: the plot of its latest evaluation, and the plots that its training stored."""

from control.core.storage.backends import ObjectMissing, get_storage
from control.data.files.streaming import StoredFileResponse
from control.models.catalog.models import Speculator

EVALUATION = "evaluation"
TRAINING_PLOTS = ("loss", "acceptance_over_steps", "acceptance_per_position")
PLOTS = (EVALUATION, *TRAINING_PLOTS)


def training_plots(speculator: Speculator) -> list[str]:
    """Names of the stored training plots. Speculators that were imported or trained by an older release have none."""
    return [
        name for name in TRAINING_PLOTS if speculator.storage_prefix and get_storage().exists(_key(speculator, name))
    ]


def plot_response(speculator: Speculator, name: str) -> StoredFileResponse:
    """Returns a response with a plot. Args: name: one of `PLOTS`. Raises: ObjectMissing: there is no such plot."""
    if name == EVALUATION and speculator.plot_key:
        return StoredFileResponse(speculator.plot_key, filename=f"{speculator.pk}.png", content_type="image/png")
    if name in TRAINING_PLOTS and speculator.storage_prefix:
        filename = f"{speculator.pk}.{name}.svg"
        return StoredFileResponse(_key(speculator, name), filename=filename, content_type="image/svg+xml")
    raise ObjectMissing(f"{speculator.pk} has no plot {name!r}")


def _key(speculator: Speculator, name: str) -> str:
    return f"{speculator.storage_prefix}/plots/{name}.svg"
