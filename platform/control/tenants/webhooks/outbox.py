"""The outbox of webhooks: the transaction that writes an event also writes a row for each delivery to be sent."""

from django.db.models import Q
from django.utils import timezone

from control.tenants.events.models import Event
from control.tenants.events.types import matches
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint


def deliveries_enqueue(event: Event) -> None:
    """Adds a delivery for every enabled endpoint that sees the event and is subscribed to its type."""
    sees = Q(project=None) | Q(project=event.project_id)
    endpoints = WebhookEndpoint.objects.filter(sees, organization_id=event.organization_id, disabled="")
    WebhookDelivery.objects.bulk_create(
        [delivery_of(event, endpoint) for endpoint in endpoints if matches(event.type, endpoint.events)]
    )


def delivery_of(event: Event, endpoint: WebhookEndpoint) -> WebhookDelivery:
    """Returns an unsaved row."""
    return WebhookDelivery(
        organization_id=event.organization_id,
        endpoint=endpoint,
        event=event,
        object_id=event.object_id,
        next_attempt_at=timezone.now(),
    )
