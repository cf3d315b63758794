"""Derives from a speculator which drafter an engine uses, and whether the speculator changes the model's answers."""

from control.core.settings.config import get_config
from control.models.catalog.models import Speculator
from workers.kinds import OUTPUT_CHANGING_KINDS, served_drafter


def drafter_of(speculator: Speculator) -> str:
    """Returns the speculator's kind, combined with suffix decoding unless the installation's settings switch suffix
    decoding off."""
    return served_drafter(speculator.kind, with_suffix_decoding=get_config().suffix_decoding)


def changes_output(old: Speculator | None, new: Speculator | None) -> bool:
    """Returns whether answers change when `new` replaces `old`.

    Some speculators come with an adapter that changes the answers. No two speculators have the same adapter.
    """
    return _output_of(old) != _output_of(new)


def _output_of(speculator: Speculator | None) -> str | None:
    """Returns the id of the speculator whose adapter every answer uses; None: no adapter changes the answers."""
    return speculator.pk if speculator is not None and speculator.kind in OUTPUT_CHANGING_KINDS else None
