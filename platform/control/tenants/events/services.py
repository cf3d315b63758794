"""Services that write events.

An event is written in the transaction of the change that it reports. Its number in the feed, `seq`, is assigned later:

    row without seq ──commit──> numbered by the next reader of the feed, under a lock

If the writing transactions assigned numbers without a lock, number 10 could be committed before 9, and a reader that
has read 10 would never read 9. With a lock, all writers of an organization would have to wait for each other.
"""

import datetime as dt

from django.db import transaction
from django.db.models import Exists, Max, OuterRef, Q
from django.utils import timezone

from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.tenants.webhooks.outbox import deliveries_enqueue

RETENTION = dt.timedelta(days=30)
PRUNE_LIMIT = 5_000
NUMBER_LIMIT = 500  # events that one transaction numbers


def event_record(
    *,
    organization_id: str,
    project_id: str | None,
    type: str,  # noqa: A002  # the column's name
    object_id: str,
) -> Event:
    """Writes an event. Call this in the transaction of the reported change, after locking the object's row.

    Effects: the same transaction adds a delivery for each webhook endpoint that is subscribed to the type.
    Args: project_id: the project of the object.
    """
    assert transaction.get_connection().in_atomic_block, "an event is written with its change or not at all"
    event = Event.objects.create(organization_id=organization_id, project_id=project_id, type=type, object_id=object_id)
    deliveries_enqueue(event)
    return event


def events_number(organization: Organization) -> None:
    """Numbers committed events, in the order in which they were written.

    The events of one object were written in the order of its changes, because each writer held a lock on the object's
    row.

    The first reader after a long time may find very many events, so each transaction numbers a limited number of them:
    other writers need the organization's lock too.
    """
    while _number_some(organization) == NUMBER_LIMIT:
        pass


def _number_some(organization: Organization) -> int:
    """Returns: the number of events that were numbered, `NUMBER_LIMIT` at most."""
    unnumbered = Event.objects.filter(organization=organization, seq=None).order_by("number")
    if not unnumbered.exists():
        return 0
    with transaction.atomic():
        # no_key: inserts of rows that refer to the organization do not wait for this lock
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        last = Event.objects.filter(organization=organization).aggregate(last=Max("seq"))["last"] or 0
        events = list(unnumbered[:NUMBER_LIMIT])
        for event in events:
            event.seq = last = last + 1
        Event.objects.bulk_update(events, ["seq"])
    return len(events)


def events_prune() -> int:
    """Deletes events older than `RETENTION`, at most `PRUNE_LIMIT` in a call. Returns: the number of deleted rows.

    Events that nobody has read have no number and are deleted too. Each organization's last numbered event is kept,
    because the numbering continues from it.
    """
    later = Event.objects.filter(organization=OuterRef("organization"), seq__gt=OuterRef("seq"))
    old = Event.objects.filter(Q(seq=None) | Exists(later), created_at__lt=timezone.now() - RETENTION)
    numbers = list(old.order_by("created_at").values_list("pk", flat=True)[:PRUNE_LIMIT])
    return Event.objects.filter(pk__in=numbers).delete()[0] if numbers else 0
