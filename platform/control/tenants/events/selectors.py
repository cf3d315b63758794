"""Selectors for events. They return only numbered events, so no event is inserted before one that was already read."""

from django.db.models import QuerySet

from control.core.api.lookup import one_of
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.tenants.events.models import Event


def events_list(
    organization: Organization, *, types: list[str] | None = None, object_id: str | None = None
) -> QuerySet[Event]:
    events = Event.objects.filter(visible(organization), seq__isnull=False)
    if types is not None:
        events = events.filter(type__in=types)
    return events if object_id is None else events.filter(object_id=object_id)


def event_get(organization: Organization, event_id: str) -> Event:
    """Raises: ApiError: 404, also for another organization's event."""
    return one_of(events_list(organization), event_id, kind="event", param="event_id", by="id")


def last_seq(organization: Organization) -> int:
    seq = events_list(organization).order_by("-seq").values_list("seq", flat=True).first()
    return seq or 0
