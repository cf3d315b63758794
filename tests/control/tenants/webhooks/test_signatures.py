"""Promise W2 of docs/reliability.md: the reference library and OpenAI's client can verify signatures.

This includes signatures that are made during a rotation of secrets.
"""

import datetime as dt

import pytest
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone
from openai import InvalidWebhookSignatureError, OpenAI
from standardwebhooks import Webhook, WebhookVerificationError

from control.tenants.accounts.models import Organization
from control.tenants.webhooks.models import WebhookSecret
from control.tenants.webhooks.secrets import PREFIX, decrypt, encrypt, new_secret
from control.tenants.webhooks.selectors import secrets_in_force
from control.tenants.webhooks.sender import Sender
from control.tenants.webhooks.services import endpoint_rotate_secret
from tests.control.tenants.webhooks.support import (
    Clock,
    ReceivedRequest,
    Receiver,
    make_endpoint,
    record_event,
    send_due_deliveries,
)

GRACE = dt.timedelta(hours=1)


@pytest.fixture
def clock() -> Clock:
    return Clock(timezone.now())  # verifiers refuse signatures that are older than five minutes


def send_event(organization: Organization, clock: Clock, kind: str = "batch.completed") -> ReceivedRequest:
    receiver = Receiver(clock)
    record_event(organization, "batch_1", kind)
    send_due_deliveries(Sender(send=receiver, clock=clock))
    return receiver.received[-1]


def is_verified(call: ReceivedRequest, secret: str) -> bool:
    try:
        Webhook(secret).verify(call.body, dict(call.headers))
    except WebhookVerificationError:
        return False
    return True


def test_the_reference_library_verifies_sent_events(organization: Organization, clock: Clock) -> None:
    _, secret = make_endpoint(organization)
    call = send_event(organization, clock)

    assert is_verified(call, secret)
    assert not is_verified(call, new_secret())
    assert not is_verified(ReceivedRequest(call.at, call.body + b" ", call.headers), secret)


@pytest.mark.parametrize("kind", ["batch.completed", "batch.cancelled", "fine_tuning.job.succeeded"])
def test_openais_client_unwraps_sent_events(kind: str, organization: Organization, clock: Clock) -> None:
    _, secret = make_endpoint(organization)
    call = send_event(organization, clock, kind)
    client = OpenAI(api_key="unused", webhook_secret=secret, _strict_response_validation=True)

    event = client.webhooks.unwrap(call.body, call.headers)

    assert (event.type, event.to_dict()["data"]) == (kind, {"id": "batch_1"})
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(call.body, call.headers, secret=new_secret())


def test_both_secrets_verify_during_a_rotation_and_only_the_new_one_afterwards(
    organization: Organization, clock: Clock
) -> None:
    endpoint, old = make_endpoint(organization)
    new = endpoint_rotate_secret(endpoint=endpoint, grace=GRACE)

    during = send_event(organization, clock)
    assert (is_verified(during, old), is_verified(during, new)) == (True, True)

    WebhookSecret.objects.filter(expires_at__isnull=False).update(expires_at=clock.now)
    after = send_event(organization, clock)
    assert (is_verified(after, old), is_verified(after, new)) == (False, True)


def test_a_second_rotation_does_not_change_the_grace_period_of_the_first_secret(organization: Organization) -> None:
    endpoint, first = make_endpoint(organization)
    second = endpoint_rotate_secret(endpoint=endpoint, grace=2 * GRACE)
    third = endpoint_rotate_secret(endpoint=endpoint, grace=GRACE)

    assert secrets_in_force(endpoint, timezone.now()) == [third, second, first]
    # The first rotation gave the first secret 2 * GRACE, the second rotation gave the second secret GRACE.
    assert secrets_in_force(endpoint, timezone.now() + 1.5 * GRACE) == [third, first]


def test_secrets_are_shown_once_and_stored_encrypted(client: Client, organization: Organization) -> None:
    body = {"url": "https://example.com/hook"}
    made = client.post("/v1/webhook_endpoints", body, content_type="application/json").json()
    path = f"/v1/webhook_endpoints/{made['id']}"
    rotated = client.post(f"{path}/rotate_secret", {}, content_type="application/json").json()

    for secret in (made["secret"], rotated["secret"]):
        assert secret.startswith(PREFIX)
        assert secret not in client.get(path).content.decode()
        assert not any(secret.removeprefix(PREFIX) in row.encrypted for row in WebhookSecret.objects.all())


def test_secrets_can_be_decrypted_after_a_change_of_the_secret_key(settings: LazySettings) -> None:
    secret = new_secret()
    encrypted = encrypt(secret)

    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another key, long enough that Django does not warn about its length"

    assert decrypt(encrypted) == secret
