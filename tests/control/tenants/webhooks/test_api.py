"""The routes of /v1/webhook_endpoints. The setting that allows private addresses must be off in production."""

from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import Client

from control.core.settings.config import get_config
from control.tenants.accounts.models import Organization
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.tenants.webhooks.sender import Sender
from control.tenants.webhooks.services import MAX_ENDPOINTS
from control.tenants.webhooks.transport import ReceiverResponse
from tests.control.tenants.webhooks.support import Clock, Receiver, make_endpoint, record_event, send_due_deliveries

PATH = "/v1/webhook_endpoints"


def post(client: Client, path: str, body: dict[str, Any] | None = None, *, status: int = 201) -> Any:
    response = client.post(path, body or {}, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


@pytest.fixture
def private_allowed(settings: LazySettings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"webhooks_allow_private": True})


def test_an_endpoint_is_created_changed_and_deleted(client: Client) -> None:
    made = post(client, PATH, {"url": "https://example.com/a", "events": ["batch.*"], "description": "ours"})
    path = f"{PATH}/{made['id']}"
    changes = {"url": "https://example.com/b", "events": ["*"], "enabled": False}

    changed = client.patch(path, changes, content_type="application/json").json()

    assert (changed["url"], changed["events"], changed["description"]) == ("https://example.com/b", ["*"], "ours")
    assert (changed["enabled"], changed["disabled_reason"]) == (False, "by_customer")
    assert client.get(PATH).json()["data"] == [changed]
    assert client.delete(path).json() == {"id": made["id"], "object": "webhook_endpoint", "deleted": True}
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"url": "http://localhost/"}, "url"),
        ({"url": "https://example.com/", "events": ["batch.finished"]}, "events.0"),
        ({"url": "https://example.com/", "events": []}, "events"),
        ({"url": "https://example.com/", "enabled": True}, "enabled"),
        ({}, "url"),
    ],
)
def test_an_invalid_endpoint_is_refused(client: Client, body: dict[str, Any], param: str) -> None:
    assert post(client, PATH, body, status=400)["error"]["param"] == param


def test_an_endpoint_cannot_be_moved_to_a_private_address(client: Client, organization: Organization) -> None:
    endpoint, _ = make_endpoint(organization)
    response = client.patch(f"{PATH}/{endpoint.pk}", {"url": "http://10.0.0.1/"}, content_type="application/json")

    assert response.json()["error"]["code"] == "invalid_url"


def test_the_number_of_endpoints_is_limited(client: Client, organization: Organization) -> None:
    for _ in range(MAX_ENDPOINTS):
        make_endpoint(organization)

    refused = post(client, PATH, {"url": "https://example.com/"}, status=409)
    assert refused["error"]["code"] == "too_many_webhook_endpoints"


def test_deliveries_are_listed_and_replayed(client: Client, organization: Organization) -> None:
    endpoint, _ = make_endpoint(organization)
    path = f"{PATH}/{endpoint.pk}/deliveries"
    receiver = Receiver(Clock(), respond=lambda self: ReceiverResponse(status=410 if len(self.calls) == 2 else 200))
    record_event(organization, "batch_1")
    record_event(organization, "batch_2")
    send_due_deliveries(Sender(send=receiver, clock=receiver.clock))

    failed, succeeded = client.get(path).json()["data"]
    assert (failed["status"], succeeded["status"]) == ("failed", "succeeded")
    assert (failed["history"][0]["status_code"], failed["next_attempt_at"]) == (410, None)
    assert client.get(f"{path}?status=failed").json()["data"] == [failed]
    assert client.get(f"{path}?status=lost").status_code == 400
    assert client.get(f"{path}/{failed['id']}").json() == failed

    replayed = post(client, f"{path}/{failed['id']}/replay", status=202)
    assert (replayed["status"], replayed["attempt"], replayed["event_id"]) == ("pending", 0, failed["event_id"])


def test_a_test_event_appears_in_the_deliveries_of_an_enabled_endpoint(
    client: Client, organization: Organization
) -> None:
    endpoint, _ = make_endpoint(organization, "job.failed")

    delivery = post(client, f"{PATH}/{endpoint.pk}/test", status=202)

    assert delivery["event_type"] == "webhook_endpoint.test"
    assert client.get(f"{PATH}/{endpoint.pk}/deliveries").json()["data"] == [delivery]
    client.patch(f"{PATH}/{endpoint.pk}", {"enabled": False}, content_type="application/json")
    assert post(client, f"{PATH}/{endpoint.pk}/test", status=409)["error"]["code"] == "webhook_endpoint_disabled"


@pytest.mark.usefixtures("private_allowed")
def test_the_deployment_check_fails_if_private_addresses_are_allowed(client: Client) -> None:
    assert post(client, PATH, {"url": "http://127.0.0.1:8000/hook"})["enabled"]

    with pytest.raises(SystemCheckError, match=r"webhooks\.E001"):
        call_command("check", deploy=True)


def test_the_deployment_check_reports_no_webhook_error_by_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call_command("check", deploy=True)

    assert "webhooks" not in capsys.readouterr().err


def test_a_history_of_an_unknown_shape_is_returned_unchanged(client: Client, organization: Organization) -> None:
    endpoint, _ = make_endpoint(organization)
    delivery = post(client, f"{PATH}/{endpoint.pk}/test", status=202)
    WebhookDelivery.objects.update(history=[{"at": 1, "status": "500"}])

    body = client.get(f"{PATH}/{endpoint.pk}/deliveries/{delivery['id']}").json()

    assert body == {**delivery, "history": [{"at": 1, "status": "500"}]}


def test_an_endpoint_with_unknown_event_types_is_shown(client: Client, organization: Organization) -> None:
    endpoint, _ = make_endpoint(organization)
    WebhookEndpoint.objects.update(events=["batch.finished", 1])

    assert client.get(f"{PATH}/{endpoint.pk}").json()["events"] == ["batch.finished", 1]
