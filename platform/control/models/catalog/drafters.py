"""What the engine is asked for when it serves or evaluates a speculator."""

from control.core.settings.config import get_config
from control.models.catalog.models import Speculator


def drafter_of(speculator: Speculator) -> str:
    """The engine's name for it. Beside what was trained, suffix decoding copies from the request and past answers."""
    return f"{speculator.kind}+suffix" if get_config().suffix_decoding else speculator.kind
