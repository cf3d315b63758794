"""Example objects and request bodies of webhooks, for the tests that cover all routes."""

from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.tenants.webhooks.services import endpoint_create, endpoint_test
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def endpoint(world: World) -> WebhookEndpoint:
    url = f"https://{world.tag}.example.com/"
    return endpoint_create(organization=world.organization, url=url, events=["*"])[0]


def delivery(world: World) -> WebhookDelivery:
    return endpoint_test(endpoint=world.endpoint)


IDS: Ids = {
    "endpoint_id": lambda world: world.endpoint.pk,
    "delivery_id": lambda world: world.delivery.pk,
}
BODIES: Bodies = {
    "POST /v1/webhook_endpoints": Body(lambda world: {"url": "https://example.com/"}),
    "PATCH /v1/webhook_endpoints/{endpoint_id}": Body(lambda world: {"description": "new"}),
    "POST /v1/webhook_endpoints/{endpoint_id}/rotate_secret": Body(lambda world: {"grace_seconds": 60}),
    "POST /v1/webhook_endpoints/{endpoint_id}/test": NO_BODY,
    "POST /v1/webhook_endpoints/{endpoint_id}/deliveries/{delivery_id}/replay": NO_BODY,
}
