"""Example objects and request bodies of events, for the tests that cover all routes."""

from django.db import transaction

from control.tenants.events.models import Event
from control.tenants.events.services import event_record, events_number
from control.tenants.row_security.scope import current_project
from tests.control.world import Ids, World


def event(world: World) -> Event:
    with transaction.atomic():
        event = event_record(
            organization_id=world.organization.pk,
            project_id=current_project(),
            type="batch.completed",
            object_id=f"batch_{world.tag}",
        )
    events_number(world.organization)
    return event


IDS: Ids = {
    "event_id": lambda world: world.event.id,
}
