"""/v1/webhook_endpoints, and below each its deliveries."""

import datetime as dt

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.tenants.authentication.views import OrganizationView
from control.tenants.webhooks.models import WebhookDelivery
from control.tenants.webhooks.selectors import deliveries_list, delivery_get, endpoint_get, endpoints_list
from control.tenants.webhooks.serializers import (
    EndpointInput,
    EndpointUpdateInput,
    RotateSecretInput,
    delivery_body,
    endpoint_body,
    endpoint_with_secret_body,
)
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

    def get(self, request: Request) -> Response:
        return paginate(endpoints_list(self.organization), request, endpoint_body)

    def post(self, request: Request) -> Response:
        form = EndpointInput(data=request.data)
        form.is_valid(raise_exception=True)
        endpoint, secret = endpoint_create(organization=self.organization, **form.validated_data)
        return Response(endpoint_with_secret_body(endpoint, secret), status=201)


class EndpointView(OrganizationView):
    scope = "webhooks"

    def get(self, request: Request, endpoint_id: str) -> Response:
        return Response(endpoint_body(endpoint_get(self.organization, endpoint_id)))

    def patch(self, request: Request, endpoint_id: str) -> Response:
        endpoint = endpoint_get(self.organization, endpoint_id)
        form = EndpointUpdateInput(data=request.data)
        form.is_valid(raise_exception=True)
        return Response(endpoint_body(endpoint_update(endpoint=endpoint, changes=form.validated_data)))

    def delete(self, request: Request, endpoint_id: str) -> Response:
        endpoint = endpoint_get(self.organization, endpoint_id)
        endpoint_delete(endpoint=endpoint)
        return Response({"id": endpoint_id, "object": "webhook_endpoint", "deleted": True})


class EndpointRotateView(OrganizationView):
    scope = "webhooks"
    not_replayed = ("secret",)

    def post(self, request: Request, endpoint_id: str) -> Response:
        """A new secret, shown once. The old one signs too for `grace_seconds`, a day unless said otherwise."""
        endpoint = endpoint_get(self.organization, endpoint_id)
        form = RotateSecretInput(data=request.data)
        form.is_valid(raise_exception=True)
        grace = dt.timedelta(seconds=form.validated_data["grace_seconds"])
        return Response(endpoint_with_secret_body(endpoint, endpoint_rotate_secret(endpoint=endpoint, grace=grace)))


class EndpointTestView(OrganizationView):
    scope = "webhooks"

    def post(self, request: Request, endpoint_id: str) -> Response:
        """202: the delivery shows what becomes of it."""
        delivery = endpoint_test(endpoint=endpoint_get(self.organization, endpoint_id))
        return Response(delivery_body(delivery), status=202)


class DeliveriesView(OrganizationView):
    scope = "webhooks"

    def get(self, request: Request, endpoint_id: str) -> Response:
        deliveries = deliveries_list(endpoint_get(self.organization, endpoint_id))
        if (status := request.query_params.get("status")) is not None:
            if status not in WebhookDelivery.Status.values:
                message = f"status must be one of {WebhookDelivery.Status.values}, got {status[:40]!r}"
                raise ApiError(400, message, "invalid_value", "status")
            deliveries = deliveries.filter(status=status)
        return paginate(deliveries, request, delivery_body)


class DeliveryView(OrganizationView):
    scope = "webhooks"

    def get(self, request: Request, endpoint_id: str, delivery_id: str) -> Response:
        return Response(delivery_body(delivery_get(endpoint_get(self.organization, endpoint_id), delivery_id)))


class DeliveryReplayView(OrganizationView):
    scope = "webhooks"

    def post(self, request: Request, endpoint_id: str, delivery_id: str) -> Response:
        """202: sent again under the same `webhook-id`, whether it had arrived or not."""
        delivery = delivery_get(endpoint_get(self.organization, endpoint_id), delivery_id)
        return Response(delivery_body(delivery_replay(delivery=delivery)), status=202)
