"""GET /v1/events: the organization's feed, as a list or, with `Accept: text/event-stream`, as a live stream."""

from typing import Any

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from control.core.api.errors import ApiError
from control.core.api.operation import EVENTS, PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.tenants.authentication.views import OrganizationView
from control.tenants.events.schemas import EventObject
from control.tenants.events.selectors import event_get, events_list, last_seq
from control.tenants.events.services import events_number
from control.tenants.events.stream import Subscription, refuse_too_many, stream
from control.tenants.events.types import EVENT_TYPES, matches, patterns


class EventsView(OrganizationView):
    scope = "events"

    @operation(
        "events.list",
        response=Page[EventObject],
        also=EVENTS,
        query={
            **PAGING,
            "types": "Only events of these types: names or patterns such as `batch.*`, separated by commas.",
            "object_id": "Only events of this object.",
        },
    )
    def get(self, request: Request) -> HttpResponseBase:
        """Returns a page of events, or with `Accept: text/event-stream` a stream of the events from now on.

        A stream that resumes sends the events after `Last-Event-ID`, or after `after`.
        """
        events_number(self.organization)
        filters: dict[str, Any] = {
            "types": _types(request.query_params.get("types")),
            "object_id": request.query_params.get("object_id"),
        }
        if EVENTS in request.headers.get("Accept", ""):
            return self._stream(request, filters)
        return paginate(events_list(self.organization, **filters), request, EventObject.of, by="seq", id_field="id")

    def _stream(self, request: Request, filters: dict[str, Any]) -> StreamingHttpResponse:
        refuse_too_many(self.organization)
        after = request.headers.get("Last-Event-ID") or request.query_params.get("after")
        seq = event_get(self.organization, after).seq if after else last_seq(self.organization)
        assert seq is not None
        subscription = Subscription(organization=self.organization, key=self.key, after=seq, **filters)
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # X-Accel-Buffering: nginx must not buffer
        return StreamingHttpResponse(stream(subscription), content_type=EVENTS, headers=headers)


class EventView(OrganizationView):
    scope = "events"

    @operation("events.retrieve", response=EventObject)
    def get(self, request: Request, event_id: str) -> EventObject:
        events_number(self.organization)
        return EventObject.of(event_get(self.organization, event_id))


def _types(text: str | None) -> list[str] | None:
    """Raises: ApiError: 400."""
    if text is None:
        return None
    names = text.split(",")
    if unknown := [name for name in names if name not in patterns()]:
        raise ApiError(400, f"types must be names of events, got {unknown[0][:80]!r}", "invalid_value", "types")
    return [name for name in EVENT_TYPES if matches(name, names)]
