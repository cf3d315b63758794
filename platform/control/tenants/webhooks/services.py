"""Endpoints and deliveries from the customer's side. What the sender finds is written by `results`."""

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
from control.tenants.events.types import ENDPOINT_TEST
from control.tenants.webhooks.addresses import check_url
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
    """The endpoint and its secret, which is shown once.

    Raises: ApiError: 400, a URL that we do not call; 409, there are as many endpoints as an organization may have.
    """
    check_url(url, allow_private=get_config().webhooks_allow_private)
    Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)  # two at once must not pass the limit
    if WebhookEndpoint.objects.filter(organization=organization).count() >= MAX_ENDPOINTS:
        message = f"An organization has at most {MAX_ENDPOINTS} webhook endpoints."
        raise ApiError(409, message, "too_many_webhook_endpoints")
    endpoint = WebhookEndpoint.objects.create(
        organization=organization, url=url, events=list(events), description=description
    )
    return endpoint, _add_secret(endpoint)


@audited("webhook_endpoint.update")
@transaction.atomic
def endpoint_update(*, endpoint: WebhookEndpoint, changes: Mapping[str, Any]) -> WebhookEndpoint:
    """`changes`: any of url, events, description, enabled. What waits for a disabled endpoint is sent once it is not.

    Raises: ApiError: 400, a URL that we do not call.
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
    """With its deliveries, sent or not."""
    WebhookEndpoint.objects.filter(pk=endpoint.pk).delete()


@audited("webhook_endpoint.rotate_secret")
@transaction.atomic
def endpoint_rotate_secret(*, endpoint: WebhookEndpoint, grace: dt.timedelta) -> str:
    """A new secret. Until `grace` is over, deliveries are signed with the old one too."""
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
    """Sends an event made for this, to this endpoint alone and whatever it subscribed to.

    Raises: ApiError: 409, it is disabled.
    """
    if endpoint.disabled:
        raise ApiError(409, "The endpoint is disabled; enable it first.", "webhook_endpoint_disabled", "endpoint_id")
    event = Event.objects.create(organization_id=endpoint.organization_id, type=ENDPOINT_TEST, object_id=endpoint.pk)
    delivery = delivery_of(event, endpoint)
    delivery.save()
    return delivery


@audited("webhook_delivery.replay")
def delivery_replay(*, delivery: WebhookDelivery) -> WebhookDelivery:
    """Sends it again, now and then by the whole schedule, under the same `webhook-id`. A pending one is hastened."""
    now = timezone.now()
    WebhookDelivery.objects.filter(pk=delivery.pk).update(
        status=Status.PENDING, attempt=0, next_attempt_at=now, claimed_until=None, finished_at=None
    )
    delivery.refresh_from_db()
    return delivery


def webhook_secrets_reencrypt() -> int:
    """Writes every secret with the secret key of now. Returns: how many.

    Raises: cryptography.fernet.InvalidToken: one was written under a key that is not known any more; nothing changes.
    """
    with transaction.atomic():
        rows = list(WebhookSecret.objects.select_for_update())
        for row in rows:
            row.encrypted = reencrypt(row.encrypted)
        WebhookSecret.objects.bulk_update(rows, ["encrypted"], batch_size=500)
    return len(rows)
