"""/v1/deployments: ask for an endpoint, look at it, give it another speculator, start, stop and delete it."""

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from control.billing.usage.query import has_more, parse_window
from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.models.adapters.selectors import adapters_get
from control.models.catalog.models import Speculator
from control.models.catalog.selectors import base_model_get, speculator_get
from control.serving.deployments.figures import stretches
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import deployment_get, deployments_list
from control.serving.deployments.serializers import (
    DeploymentInput,
    DeploymentUpdateInput,
    deployment_json,
    metrics_body,
)
from control.serving.deployments.services import (
    deployment_create,
    deployment_delete,
    deployment_start,
    deployment_stop,
    deployment_update,
)
from control.tenants.accounts.models import Organization
from control.tenants.authentication.views import OrganizationView
from control.tenants.events.schemas import EventObject
from control.tenants.events.selectors import events_list
from control.tenants.events.services import events_number


class DeploymentsView(OrganizationView):
    scope = "deployments"

    def get(self, request: Request) -> Response:
        rows = deployments_list(self.organization, only=self.key.deployment_ids)
        return paginate(rows, request, deployment_json)

    def post(self, request: Request) -> Response:
        if self.key.deployment_ids is not None:
            message = "This key is restricted to deployments that exist; it cannot create others."
            raise ApiError(403, message, "insufficient_scope")
        form = DeploymentInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        deployment = deployment_create(
            organization=self.organization,
            name=values["name"],
            base_model=base_model_get(self.organization, values["model"]),
            speculator=_speculator(self.organization, values["speculator_id"]),
            adapters=adapters_get(self.organization, values["adapters"]),
        )
        return Response(deployment_json(deployment), status=201)


class _OneDeployment(OrganizationView):
    scope = "deployments"

    def deployment(self, deployment_id: str) -> Deployment:
        return deployment_get(self.organization, deployment_id, only=self.key.deployment_ids)


class DeploymentView(_OneDeployment):
    def get(self, request: Request, deployment_id: str) -> Response:
        return Response(deployment_json(self.deployment(deployment_id)))

    def patch(self, request: Request, deployment_id: str) -> Response:
        """Another speculator, or null for none; other adapters. The endpoint drains and restarts."""
        deployment = self.deployment(deployment_id)
        form = DeploymentUpdateInput(data=request.data)
        form.is_valid(raise_exception=True)
        values, speculator, adapters = form.validated_data, deployment.speculator, None
        if "speculator_id" in values:
            speculator = _speculator(self.organization, values["speculator_id"])
        if "adapters" in values:
            adapters = adapters_get(self.organization, values["adapters"])
        deployment_update(deployment=deployment, speculator=speculator, adapters=adapters)
        return Response(deployment_json(self.deployment(deployment_id)))

    def delete(self, request: Request, deployment_id: str) -> Response:
        deployment = deployment_delete(deployment=self.deployment(deployment_id))
        return Response({"id": deployment.pk, "object": "deployment", "deleted": True})


class DeploymentEventsView(_OneDeployment):
    """What became of it, newest first."""

    def get(self, request: Request, deployment_id: str) -> Response:
        events_number(self.organization)
        events = events_list(self.organization, object_id=self.deployment(deployment_id).pk)
        return paginate(events, request, EventObject.of, by="seq", id_field="id")


class DeploymentMetricsView(_OneDeployment):
    """Over time, as its engine counted: of the last hour by the minute, unless asked for otherwise. Kept for 7 days."""

    def get(self, request: Request, deployment_id: str) -> Response:
        deployment, params = self.deployment(deployment_id), request.query_params.copy()
        params.setdefault("bucket_width", "1m")
        params.setdefault("start_time", str(int(timezone.now().timestamp()) - 3600))
        window = parse_window(params)
        found = stretches(deployment, window)
        more = has_more(params, window)
        return Response(
            {
                "object": "page",
                "data": [metrics_body(at, stretch, seconds=window.width.seconds) for at, stretch in found.items()],
                "has_more": more,
                "next_page": str(int(window.end.timestamp())) if more else None,
            }
        )


class DeploymentStartView(_OneDeployment):
    """202: the answer shows the wish; the state follows."""

    def post(self, request: Request, deployment_id: str) -> Response:
        deployment = deployment_start(deployment=self.deployment(deployment_id))
        return Response(deployment_json(deployment), status=202)


class DeploymentStopView(_OneDeployment):
    """202: no new request reaches the endpoint from now on; those it has are finished."""

    def post(self, request: Request, deployment_id: str) -> Response:
        deployment = deployment_stop(deployment=self.deployment(deployment_id))
        return Response(deployment_json(deployment), status=202)


def _speculator(organization: Organization, speculator_id: str | None) -> Speculator | None:
    return None if speculator_id is None else speculator_get(organization, speculator_id)
