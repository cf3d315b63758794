"""Writers of events.

An event is written by the transaction that it reports, and gets its place in the organization's feed afterwards:

    row without seq ──commit──> numbered by whoever looks next, sender or reader, one at a time

Places given inside of the transactions would either be seen out of order, so that a reader who has seen 10 never asks
for 9, or make all writers of an organization wait for each other.
"""

import datetime as dt

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.tenants.webhooks.outbox import deliveries_enqueue

KEPT = dt.timedelta(days=30)


def event_record(*, organization_id: str, type: str, object_id: str) -> Event:  # noqa: A002  # the column's name
    """Call it in the transaction of the change that it reports, after the statement that locked the object's row.

    Effects: a delivery for each webhook endpoint that wants it, by the same transaction.
    """
    assert transaction.get_connection().in_atomic_block, "an event is written with its change or not at all"
    event = Event.objects.create(organization_id=organization_id, type=type, object_id=object_id)
    deliveries_enqueue(event)
    return event


def events_number(organization: Organization) -> None:
    """Gives committed events their places. Events of one object were written under its row's lock, hence in order."""
    fresh = Event.objects.filter(organization=organization, seq=None).order_by("number")
    if not fresh.exists():
        return
    with transaction.atomic():
        # no_key: the inserts of rows that refer to the organization must not wait for this
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        last = Event.objects.filter(organization=organization).aggregate(last=Max("seq"))["last"] or 0
        for seq, number in enumerate(fresh.values_list("number", flat=True), start=last + 1):
            Event.objects.filter(pk=number).update(seq=seq)


def events_prune() -> int:
    """Deletes what is older than `KEPT`; the last of an organization stays, for it holds the count."""
    old = Event.objects.filter(created_at__lt=timezone.now() - KEPT, seq__isnull=False)
    if not old.exists():
        return 0
    lasts = Event.objects.values("organization").annotate(last=Max("number")).values("last")
    return old.exclude(number__in=lasts).delete()[0]
