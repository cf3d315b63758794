"""`verify` accepts a webhook only if it has a recent signature that was made with the endpoint's secret."""

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook

from slipstream import WebhookError
from slipstream.webhooks import verify

SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
BODY = json.dumps({"id": "evt_1", "type": "batch.completed", "created_at": 1, "data": {"id": "batch_1"}})


def signed(body: str = BODY, secret: str = SECRET, age: timedelta = timedelta()) -> dict[str, str]:
    at = datetime.now(UTC) - age
    signature = Webhook(secret).sign("evt_1", at, body)
    return {"Webhook-Id": "evt_1", "Webhook-Timestamp": str(int(at.timestamp())), "Webhook-Signature": signature}


def test_a_verified_delivery_yields_its_event() -> None:
    event = verify(BODY.encode(), signed(), SECRET)

    assert (event.id, event.type, event.object_id) == ("evt_1", "batch.completed", "batch_1")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (BODY.replace("batch_1", "batch_2"), signed()),
        (BODY, signed(secret="whsec_" + base64.b64encode(b"o" * 24).decode())),
        (BODY, signed(age=timedelta(minutes=6))),
        (BODY, signed() | {"Webhook-Signature": "v1"}),
        (BODY, {}),
        ("nonsense", signed("nonsense")),
    ],
    ids=["changed body", "another secret", "too old", "malformed signature", "unsigned", "not JSON"],
)
def test_a_delivery_with_a_wrong_signature_or_body_is_refused(body: str, headers: dict[str, str]) -> None:
    with pytest.raises(WebhookError):
        verify(body, headers, SECRET)
