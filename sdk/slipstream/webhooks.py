"""Webhook endpoints, and the verification of the deliveries that they receive."""

import json
from collections.abc import Mapping, Sequence

from standardwebhooks import Webhook, WebhookVerificationError

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.errors import WebhookError
from slipstream.http import D, Resource, path_of, without_none
from slipstream.records import parsed
from slipstream.types import Event, WebhookDelivery, WebhookEndpoint


def verify(body: bytes | str, headers: Mapping[str, str], secret: str) -> Event:
    """Return the event of a delivery. All deliveries of an event have the same event id, also in their `webhook-id`.

    Args: body: the raw body, not parsed and serialized again.
    Raises: WebhookError: the signature is wrong or older than five minutes, or the body is not an event.
    """
    try:
        Webhook(secret).verify(body, dict(headers), json_parse=False)
        values = json.loads(body)
    except (WebhookVerificationError, ValueError) as error:
        raise WebhookError(str(error)) from error
    return parsed(Event, values)


class WebhookEndpoints(Resource[D]):
    @procedure
    def create(self, *, url: str, events: Sequence[str] = ("*",), description: str = "") -> Steps[WebhookEndpoint]:
        """Create an endpoint; its secret is in `secret`.

        `secret` is None if the request was retried because the response to an earlier attempt was lost. In this case,
        rotate the secret to get a new one.
        """
        body = {"url": url, "events": list(events), "description": description}
        return self.http.post(WebhookEndpoint, "webhook_endpoints", body)

    @procedure
    def retrieve(self, endpoint_id: str) -> Steps[WebhookEndpoint]:
        return self.http.get(WebhookEndpoint, path_of("webhook_endpoints", endpoint_id))

    @listing
    def list(self) -> Items[Page[WebhookEndpoint]]:
        return self.http.pages(WebhookEndpoint, "webhook_endpoints")

    @procedure
    def update(
        self,
        endpoint_id: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        description: str | None = None,
        enabled: bool | None = None,
    ) -> Steps[WebhookEndpoint]:
        """Change the given fields of an endpoint."""
        body = without_none({"url": url, "events": events, "description": description, "enabled": enabled})
        return self.http.patch(WebhookEndpoint, path_of("webhook_endpoints", endpoint_id), body)

    @procedure
    def delete(self, endpoint_id: str) -> Steps[None]:
        return self.http.delete(path_of("webhook_endpoints", endpoint_id))

    @procedure
    def rotate_secret(self, endpoint_id: str, *, grace_seconds: int | None = None) -> Steps[WebhookEndpoint]:
        path = path_of("webhook_endpoints", endpoint_id, "rotate_secret")
        return self.http.post(WebhookEndpoint, path, {"grace_seconds": grace_seconds})

    @procedure
    def test(self, endpoint_id: str) -> Steps[WebhookDelivery]:
        return self.http.post(WebhookDelivery, path_of("webhook_endpoints", endpoint_id, "test"))

    @listing
    def deliveries(self, endpoint_id: str, *, status: str | None = None) -> Items[Page[WebhookDelivery]]:
        path = path_of("webhook_endpoints", endpoint_id, "deliveries")
        return self.http.pages(WebhookDelivery, path, {"status": status})

    @procedure
    def delivery(self, endpoint_id: str, delivery_id: str) -> Steps[WebhookDelivery]:
        path = path_of("deliveries", delivery_id)
        return self.http.get(WebhookDelivery, path_of("webhook_endpoints", endpoint_id, path))

    @procedure
    def replay(self, endpoint_id: str, delivery_id: str) -> Steps[WebhookDelivery]:
        path = path_of("deliveries", delivery_id, "replay")
        return self.http.post(WebhookDelivery, path_of("webhook_endpoints", endpoint_id, path))
