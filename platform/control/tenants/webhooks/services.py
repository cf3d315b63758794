"""Services by which customers change endpoints and deliveries. `results` writes the results of attempts."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.tenants.events.models import Event
from control.tenants.webhooks.addresses import check_url
from control.tenants.webhooks.event_types import ENDPOINT_TEST
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint, WebhookSecret
from control.tenants.webhooks.outbox import delivery_of
from control.tenants.webhooks.secrets import encrypt, new_secret, reencrypt

MAX_ENDPOINTS = 20
Status = WebhookDelivery.Status


@audited("webhook_endpoint.create")
@transaction.atomic
def endpoint_create(
    *, organization: Organization, url: str, events: Sequence[str], description: str = ""
) -> tuple[WebhookEndpoint, str]:
    """Returns the endpoint and its secret, which is shown once.

    Raises: ApiError: 400, the URL is not allowed; 409, the organization has the maximum number of endpoints.
    """
    check_url(url, allow_private=get_config().webhooks_allow_private)
    Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)  # serializes concurrent requests
    if WebhookEndpoint.objects.filter(organization=organization).count() >= MAX_ENDPOINTS:
        message = f"An organization can have at most {MAX_ENDPOINTS} webhook endpoints."
        raise ApiError(409, message, "too_many_webhook_endpoints")
    endpoint = WebhookEndpoint.objects.create(
        organization=organization, url=url, events=list(events), description=description
    )
    return endpoint, _add_secret(endpoint)


@audited("webhook_endpoint.update")
@transaction.atomic
def endpoint_update(*, endpoint: WebhookEndpoint, changes: Mapping[str, Any]) -> WebhookEndpoint:
    """Changes an endpoint. Pending deliveries of a disabled endpoint are sent once it is enabled again.

    Args:
        changes: values for any of url, events, description, enabled.
    Raises: ApiError: 400, the URL is not allowed.
    """
    values = {name: changes[name] for name in ("url", "events", "description") if name in changes}
    if "url" in values:
        check_url(values["url"], allow_private=get_config().webhooks_allow_private)
    if "enabled" in changes:
        values |= {
            "disabled": "" if changes["enabled"] else WebhookEndpoint.Disabled.BY_CUSTOMER,
            "failing_since": None,
        }
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(**values)
    endpoint.refresh_from_db()
    return endpoint


@audited("webhook_endpoint.delete")
def endpoint_delete(*, endpoint: WebhookEndpoint) -> None:
    """Deletes the endpoint and its deliveries, even those that have not been sent."""
    WebhookEndpoint.objects.filter(pk=endpoint.pk).delete()


@audited("webhook_endpoint.rotate_secret")
@transaction.atomic
def endpoint_rotate_secret(*, endpoint: WebhookEndpoint, grace: dt.timedelta) -> str:
    """Returns a new secret. Until `grace` has passed, deliveries are signed with the old one too."""
    now = timezone.now()
    WebhookSecret.objects.filter(endpoint=endpoint, expires_at__lte=now).delete()
    WebhookSecret.objects.filter(endpoint=endpoint, expires_at=None).update(expires_at=now + grace)
    return _add_secret(endpoint)


def _add_secret(endpoint: WebhookEndpoint) -> str:
    secret = new_secret()
    WebhookSecret.objects.create(organization_id=endpoint.organization_id, endpoint=endpoint, encrypted=encrypt(secret))
    return secret


@audited("webhook_endpoint.test")
@transaction.atomic
def endpoint_test(*, endpoint: WebhookEndpoint) -> WebhookDelivery:
    """Sends a test event to this endpoint only, even if it is not subscribed to test events.

    Raises: ApiError: 409, the endpoint is disabled.
    """
    if endpoint.disabled:
        raise ApiError(409, "The endpoint is disabled; enable it first.", "webhook_endpoint_disabled", "endpoint_id")
    event = Event.objects.create(
        organization_id=endpoint.organization_id,
        project_id=endpoint.project_id,
        type=ENDPOINT_TEST,
        object_id=endpoint.pk,
    )
    delivery = delivery_of(event, endpoint)
    delivery.save()
    return delivery


@audited("webhook_delivery.replay")
def delivery_replay(*, delivery: WebhookDelivery) -> WebhookDelivery:
    """Sends a delivery again, with the same `webhook-id`. Its retry schedule restarts, even if the delivery is still
    pending."""
    now = timezone.now()
    WebhookDelivery.objects.filter(pk=delivery.pk).update(
        status=Status.PENDING, attempt=0, next_attempt_at=now, claimed_until=None, finished_at=None
    )
    delivery.refresh_from_db()
    return delivery


def webhook_secrets_reencrypt() -> int:
    """Encrypts all secrets with the current secret key. Returns: the number of secrets.

    Raises: cryptography.fernet.InvalidToken: a secret was encrypted with a key that is not known; nothing changes.
    """
    with transaction.atomic():
        rows = list(WebhookSecret.objects.select_for_update())
        for row in rows:
            row.encrypted = reencrypt(row.encrypted)
        WebhookSecret.objects.bulk_update(rows, ["encrypted"], batch_size=500)
    return len(rows)
