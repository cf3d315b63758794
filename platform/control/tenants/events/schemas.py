"""The event object, which is OpenAI's. The feed and the bodies of webhooks show it in the same form."""

from typing import Literal, Self

from control.core.api.schemas import ResponseModel, Unix
from control.tenants.events.models import Event


class EventData(ResponseModel):
    id: str


class EventObject(ResponseModel):
    id: str
    object: Literal["event"] = "event"
    type: str
    created_at: Unix
    data: EventData

    @classmethod
    def of(cls, event: Event) -> Self:
        """Names the object and does not describe it: a receiver retrieves the object with its own key."""
        return cls.from_row(event, data=EventData(id=event.object_id))
