"""GET /v1/events: the organization's feed, as a list or, with `Accept: text/event-stream`, as a live stream."""

from django.http.response import HttpResponseBase
from rest_framework.request import Request

from control.core.api.operation import EVENTS, PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.tenants.async_requests.event_stream import EventStream
from control.tenants.authentication.views import OrganizationView
from control.tenants.events.schemas import EventObject
from control.tenants.events.selectors import event_get, events_list
from control.tenants.events.services import events_number
from control.tenants.events.stream import refuse_too_many, stream
from control.tenants.events.subscription import filters_of, subscription_of


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
        if EVENTS in request.headers.get("Accept", ""):  # `control.asgi` serves these requests (`feed`)
            subscription = subscription_of(request._request, self.key)
            refuse_too_many(self.organization.pk)
            return EventStream(stream(subscription))
        events = events_list(self.organization, **filters_of(request._request))
        return paginate(events, request, EventObject.of, by="seq", id_field="id")


class EventView(OrganizationView):
    scope = "events"

    @operation("events.retrieve", response=EventObject)
    def get(self, request: Request, event_id: str) -> EventObject:
        events_number(self.organization)
        return EventObject.of(event_get(self.organization, event_id))
