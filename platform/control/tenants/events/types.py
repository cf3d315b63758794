"""The names of all event types, which the apps declare in their modules `event_types`.

If OpenAI has no name for an event, the event is named after the object's type and new status. The names are public and
therefore written out: renaming a status in a model must not rename an event. A test compares the names with the models.
"""

from importlib import import_module
from pathlib import Path

_CONTROL = Path(__file__).parents[2]
EVENT_TYPES: tuple[str, ...] = tuple(
    name
    for path in sorted(_CONTROL.glob("*/*/event_types.py"))
    for name in import_module(f"control.{path.parts[-3]}.{path.parts[-2]}.event_types").EVENT_TYPES
)


def patterns() -> list[str]:
    """Returns the valid subscriptions: a type, `batch.*` for all types that begin with `batch.`, and `*`."""
    prefixes = {name.partition(".")[0] for name in EVENT_TYPES}
    return ["*", *sorted(f"{prefix}.*" for prefix in prefixes), *EVENT_TYPES]


def matches(event_type: str, subscribed: list[str]) -> bool:
    return not {"*", event_type, f"{event_type.partition('.')[0]}.*"}.isdisjoint(subscribed)
