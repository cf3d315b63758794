"""Captured requests are encrypted with a key of their organization. A capture may keep only a sample of requests."""

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.fernet import InvalidToken
from django.core.management import call_command
from django.db import connection
from django.test import Client
from pytest_django import Settings

from control.serving.captures.models import CapturedRequest, CaptureKey
from control.serving.captures.sealing import Sealer
from control.serving.captures.selectors import requests_kept
from control.serving.captures.services import capture_set, captures_seal
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from tests.control.serving.captures.test_captures import capture_request, rows_of
from tests.control.serving.captures.test_captures import deployment as deployment


def test_the_database_stores_no_readable_text_of_a_captured_request(client: Client, deployment: Deployment) -> None:
    capture_set(deployment=deployment, hours=24)
    assert capture_request(deployment, "the quick brown fox", user="u-1")

    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {CapturedRequest._meta.db_table}")
        stored = b" ".join(bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
                           for row in cursor.fetchall() for value in row)  # fmt: skip
    assert b"quick" not in stored
    assert b"messages" not in stored
    file = client.post(f"/v1/deployments/{deployment.pk}/capture/file").json()
    assert rows_of(file["id"])[0]["body"]["messages"][0]["content"] == "the quick brown fox"


def test_a_request_that_an_earlier_release_stores_during_an_upgrade_is_encrypted(
    client: Client, deployment: Deployment
) -> None:
    capture = capture_set(deployment=deployment, hours=24)
    own = {"deployment": deployment, "organization": deployment.organization, "endpoint": "/v1/completions"}
    CapturedRequest.objects.create(**own, body={"prompt": "quick"})
    assert not requests_kept(capture).exists()

    captures_seal()

    assert CapturedRequest.objects.get().body is None
    file = client.post(f"/v1/deployments/{deployment.pk}/capture/file").json()
    assert rows_of(file["id"])[0]["body"]["prompt"] == "quick"


def test_a_sealed_request_cannot_be_opened_with_another_organizations_key_or_for_another_deployment(
    organization: Organization, other_organization: Organization
) -> None:
    mine, other = Sealer.of(organization.pk), Sealer.of(other_organization.pk)
    sealed = mine.seal({"prompt": "p"}, deployment_id="dep_1")

    assert mine.open(sealed, deployment_id="dep_1") == {"prompt": "p"}
    assert Sealer.of(organization.pk).open(sealed, deployment_id="dep_1") == {"prompt": "p"}
    for sealer, deployment_id in ((other, "dep_1"), (mine, "dep_2")):
        with pytest.raises(InvalidTag):
            sealer.open(sealed, deployment_id=deployment_id)
    assert mine.seal({"prompt": "p"}, deployment_id="dep_1") != sealed


def test_two_equal_requests_are_stored_as_different_bytes(deployment: Deployment) -> None:
    capture_set(deployment=deployment, hours=24)
    capture_request(deployment, "same")
    capture_request(deployment, "same")

    assert len({bytes(row.sealed) for row in CapturedRequest.objects.all()}) == 2


def test_after_reencryption_the_old_secret_key_is_not_needed(organization: Organization, settings: Settings) -> None:
    settings.SECRET_KEY = "the old one"
    sealed = Sealer.of(organization.pk).seal({"prompt": "p"}, deployment_id="d")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the new one", ["the old one"]

    call_command("capture_keys_reencrypt")

    settings.SECRET_KEY_FALLBACKS = []
    assert Sealer.of(organization.pk).open(sealed, deployment_id="d") == {"prompt": "p"}
    settings.SECRET_KEY = "a third one"
    with pytest.raises(InvalidToken):
        Sealer.of(organization.pk)


def test_an_organization_has_only_one_capture_key(organization: Organization) -> None:
    Sealer.of(organization.pk)
    Sealer.of(organization.pk)

    assert CaptureKey.objects.count() == 1


def test_only_the_requested_sample_of_requests_is_captured(
    client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/v1/deployments/{deployment.pk}/capture"
    body = {"hours": 24, "sample_percent": 25}
    assert client.post(path, body, content_type="application/json").json()["sample_percent"] == 25
    draws = iter([24.9, 25.0, 80.0, 0.0])
    monkeypatch.setattr("control.serving.captures.services.random.uniform", lambda low, high: next(draws))

    assert [capture_request(deployment, f"{n}") for n in range(4)] == [True, False, False, True]


@pytest.mark.parametrize("percent", [0, -1, 100.5, "half"])
def test_a_sample_of_0_percent_or_of_more_than_100_percent_is_refused(
    client: Client, deployment: Deployment, percent: object
) -> None:
    path = f"/v1/deployments/{deployment.pk}/capture"
    response = client.post(path, {"hours": 1, "sample_percent": percent}, content_type="application/json")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "sample_percent")
