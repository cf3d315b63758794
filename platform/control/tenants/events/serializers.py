"""An event on the wire: OpenAI's form, the same in the feed and in a webhook's body."""

from typing import Any

from control.core.api.times import unix
from control.tenants.events.models import Event


def event_body(event: Event) -> dict[str, Any]:
    """Thin: what has become of the object, its owner asks the API."""
    return {
        "id": event.id,
        "object": "event",
        "type": event.type,
        "created_at": unix(event.created_at),
        "data": {"id": event.object_id},
    }
