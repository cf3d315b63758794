"""Selectors for endpoints and deliveries."""

import datetime as dt

from django.db.models import Q, QuerySet

from control.core.api.errors import ApiError
from control.core.api.lookup import one_of
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint, WebhookSecret
from control.tenants.webhooks.secrets import decrypt


def endpoints_list(organization: Organization) -> QuerySet[WebhookEndpoint]:
    return WebhookEndpoint.objects.filter(visible(organization))


def endpoint_get(organization: Organization, endpoint_id: str) -> WebhookEndpoint:
    """Raises: ApiError: 404, also for another organization's endpoint."""
    return one_of(endpoints_list(organization), endpoint_id, kind="webhook endpoint", param="endpoint_id")


def deliveries_list(endpoint: WebhookEndpoint) -> QuerySet[WebhookDelivery]:
    return WebhookDelivery.objects.filter(endpoint=endpoint).select_related("event")


def delivery_get(endpoint: WebhookEndpoint, delivery_id: str) -> WebhookDelivery:
    """Raises: ApiError: 404, also for a delivery to another endpoint."""
    delivery = deliveries_list(endpoint).filter(pk=delivery_id).first()
    if delivery is None:
        message = f"No such delivery: {delivery_id[:80]!r}."
        raise ApiError(404, message, "webhook_delivery_not_found", "delivery_id")
    return delivery


def secrets_in_force(endpoint: WebhookEndpoint, now: dt.datetime) -> list[str]:
    """Returns the endpoint's secrets, newest first. There are two during a rotation."""
    rows = WebhookSecret.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), endpoint=endpoint)
    return [decrypt(row.encrypted) for row in rows.order_by("-pk")]
