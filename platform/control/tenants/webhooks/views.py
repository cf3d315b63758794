"""/v1/webhook_endpoints and, below each endpoint, its deliveries."""

import datetime as dt

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.tenants.authentication.views import OrganizationView
from control.tenants.webhooks.models import WebhookDelivery
from control.tenants.webhooks.schemas import (
    EndpointInput,
    EndpointUpdateInput,
    RotateSecretInput,
    WebhookDeliveryObject,
    WebhookEndpointObject,
    WebhookEndpointWithSecret,
)
from control.tenants.webhooks.selectors import deliveries_list, delivery_get, endpoint_get, endpoints_list
from control.tenants.webhooks.services import (
    delivery_replay,
    endpoint_create,
    endpoint_delete,
    endpoint_rotate_secret,
    endpoint_test,
    endpoint_update,
)


class EndpointsView(OrganizationView):
    scope = "webhooks"
    not_replayed = ("secret",)

    @operation("webhook_endpoints.list", response=Page[WebhookEndpointObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(endpoints_list(self.organization), request, WebhookEndpointObject.of)

    @operation("webhook_endpoints.create", request=EndpointInput, response=WebhookEndpointWithSecret, status=201)
    def post(self, request: Request, body: EndpointInput) -> WebhookEndpointWithSecret:
        endpoint, secret = endpoint_create(organization=self.organization, **body.model_dump())
        return WebhookEndpointWithSecret.of(endpoint, secret=secret)


class EndpointView(OrganizationView):
    scope = "webhooks"

    @operation("webhook_endpoints.retrieve", response=WebhookEndpointObject)
    def get(self, request: Request, endpoint_id: str) -> WebhookEndpointObject:
        return WebhookEndpointObject.of(endpoint_get(self.organization, endpoint_id))

    @operation("webhook_endpoints.update", request=EndpointUpdateInput, response=WebhookEndpointObject)
    def patch(self, request: Request, endpoint_id: str, body: EndpointUpdateInput) -> WebhookEndpointObject:
        endpoint = endpoint_get(self.organization, endpoint_id)
        changes = body.model_dump(exclude_unset=True)
        return WebhookEndpointObject.of(endpoint_update(endpoint=endpoint, changes=changes))

    @operation("webhook_endpoints.delete", response=Deleted)
    def delete(self, request: Request, endpoint_id: str) -> Deleted:
        endpoint_delete(endpoint=endpoint_get(self.organization, endpoint_id))
        return Deleted(id=endpoint_id, object="webhook_endpoint")


class EndpointRotateView(OrganizationView):
    scope = "webhooks"
    not_replayed = ("secret",)

    @operation(
        "webhook_endpoints.rotate_secret",
        summary="Replace the secret of a webhook endpoint",
        request=RotateSecretInput,
        response=WebhookEndpointWithSecret,
    )
    def post(self, request: Request, endpoint_id: str, body: RotateSecretInput) -> WebhookEndpointWithSecret:
        """Creates a secret, which is shown only once.

        For the next `grace_seconds`, by default one day, deliveries are also signed with the old secret.
        """
        endpoint = endpoint_get(self.organization, endpoint_id)
        secret = endpoint_rotate_secret(endpoint=endpoint, grace=dt.timedelta(seconds=body.grace_seconds))
        return WebhookEndpointWithSecret.of(endpoint, secret=secret)


class EndpointTestView(OrganizationView):
    scope = "webhooks"

    @operation(
        "webhook_endpoints.test",
        summary="Send a test event to a webhook endpoint",
        response=WebhookDeliveryObject,
        status=202,
    )
    def post(self, request: Request, endpoint_id: str) -> WebhookDeliveryObject:
        """Sends a test event to this endpoint. Retrieve the delivery to see whether it succeeded."""
        return WebhookDeliveryObject.of(endpoint_test(endpoint=endpoint_get(self.organization, endpoint_id)))


class DeliveriesView(OrganizationView):
    scope = "webhooks"

    @operation(
        "webhook_endpoints.deliveries.list",
        response=Page[WebhookDeliveryObject],
        query={**PAGING, "status": "Only deliveries of this status: `pending`, `succeeded` or `failed`."},
    )
    def get(self, request: Request, endpoint_id: str) -> Response:
        deliveries = deliveries_list(endpoint_get(self.organization, endpoint_id))
        if (status := request.query_params.get("status")) is not None:
            if status not in WebhookDelivery.Status.values:
                message = f"status must be one of {WebhookDelivery.Status.values}, got {status[:40]!r}"
                raise ApiError(400, message, "invalid_value", "status")
            deliveries = deliveries.filter(status=status)
        return paginate(deliveries, request, WebhookDeliveryObject.of)


class DeliveryView(OrganizationView):
    scope = "webhooks"

    @operation("webhook_endpoints.deliveries.retrieve", response=WebhookDeliveryObject)
    def get(self, request: Request, endpoint_id: str, delivery_id: str) -> WebhookDeliveryObject:
        endpoint = endpoint_get(self.organization, endpoint_id)
        return WebhookDeliveryObject.of(delivery_get(endpoint, delivery_id))


class DeliveryReplayView(OrganizationView):
    scope = "webhooks"

    @operation(
        "webhook_endpoints.deliveries.replay",
        summary="Send a delivery again",
        response=WebhookDeliveryObject,
        status=202,
    )
    def post(self, request: Request, endpoint_id: str, delivery_id: str) -> WebhookDeliveryObject:
        """Sends the event again under the same `webhook-id`, even if an earlier attempt succeeded."""
        delivery = delivery_get(endpoint_get(self.organization, endpoint_id), delivery_id)
        return WebhookDeliveryObject.of(delivery_replay(delivery=delivery))
