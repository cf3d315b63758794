"""The name of the drafter with which the engine serves or evaluates a speculator."""

from control.core.settings.config import get_config
from control.models.catalog.models import Speculator


def drafter_of(speculator: Speculator) -> str:
    """The speculator's kind, combined with suffix decoding unless the installation's setting switches that off.

    Suffix decoding drafts copies of text from the request and from past answers.
    """
    return f"{speculator.kind}+suffix" if get_config().suffix_decoding else speculator.kind
