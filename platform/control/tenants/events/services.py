"""Services that write events.

An event is written in the transaction of the change that it reports. Its number in the feed, `seq`, is assigned later:

    row without seq ──commit──> numbered by the next reader or webhook sender, under a lock

If the writing transactions assigned numbers without a lock, number 10 could be committed before 9, and a reader that
has read 10 would never read 9. With a lock, all writers of an organization would have to wait for each other.
"""

import datetime as dt

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.tenants.webhooks.outbox import deliveries_enqueue

RETENTION = dt.timedelta(days=30)


def event_record(*, organization_id: str, type: str, object_id: str) -> Event:  # noqa: A002  # the column's name
    """Call this in the transaction of the reported change, after the statement that locked the object's row.

    Effects: the same transaction adds a delivery for each webhook endpoint that is subscribed to the type.
    """
    assert transaction.get_connection().in_atomic_block, "an event is written with its change or not at all"
    event = Event.objects.create(organization_id=organization_id, type=type, object_id=object_id)
    deliveries_enqueue(event)
    return event


def events_number(organization: Organization) -> None:
    """Numbers committed events. Those of one object were written in order, under the lock of the object's row."""
    unnumbered = Event.objects.filter(organization=organization, seq=None).order_by("number")
    if not unnumbered.exists():
        return
    with transaction.atomic():
        # no_key: inserts of rows that refer to the organization do not wait for this lock
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        last = Event.objects.filter(organization=organization).aggregate(last=Max("seq"))["last"] or 0
        for seq, number in enumerate(unnumbered.values_list("number", flat=True), start=last + 1):
            Event.objects.filter(pk=number).update(seq=seq)


def events_prune() -> int:
    """Deletes events older than `RETENTION`, except each organization's last one, from which numbering continues."""
    old = Event.objects.filter(created_at__lt=timezone.now() - RETENTION, seq__isnull=False)
    if not old.exists():
        return 0
    lasts = Event.objects.values("organization").annotate(last=Max("number")).values("last")
    return old.exclude(number__in=lasts).delete()[0]
