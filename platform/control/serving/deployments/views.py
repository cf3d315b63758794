"""/v1/deployments: create an endpoint, show it, change what it serves, start, stop and delete it."""

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from control.billing.usage.query import has_more, parse_window
from control.core.api.errors import ApiError
from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.models.engines.schemas import EnginePlan
from control.serving.deployments.cost import DeploymentCost
from control.serving.deployments.figures import figures_by_bucket
from control.serving.deployments.models import Deployment
from control.serving.deployments.requests import create_from, plan_from, update_from
from control.serving.deployments.schemas import (
    DeploymentInput,
    DeploymentMetrics,
    DeploymentMetricsPage,
    DeploymentObject,
    DeploymentUpdateInput,
)
from control.serving.deployments.selectors import deployment_get, deployment_lock, deployments_list
from control.serving.deployments.services import deployment_delete, deployment_start, deployment_stop
from control.tenants.authentication.views import OrganizationView
from control.tenants.events.schemas import EventObject
from control.tenants.events.selectors import events_list
from control.tenants.events.services import events_number


class DeploymentsView(OrganizationView):
    scope = "deployments"

    @operation("deployments.list", response=Page[DeploymentObject], query=PAGING)
    def get(self, request: Request) -> Response:
        rows = deployments_list(self.organization, only=self.key.deployment_ids)
        return paginate(rows, request, DeploymentObject.of)

    @operation("deployments.create", request=DeploymentInput, response=DeploymentObject, status=201, plan=EnginePlan)
    def post(self, request: Request, body: DeploymentInput) -> DeploymentObject | EnginePlan:
        if self.key.deployment_ids is not None:
            message = "This key is restricted to deployments that exist; it cannot create others."
            raise ApiError(403, message, "insufficient_scope")
        if body.validate_only:
            return plan_from(self.organization, body)
        return DeploymentObject.of(create_from(self.organization, body))


class OneDeploymentView(OrganizationView):
    """Base class of the views below `/v1/deployments/{deployment_id}`, including the views of other apps."""

    scope = "deployments"

    def deployment(self, deployment_id: str) -> Deployment:
        return deployment_get(self.organization, deployment_id, only=self.key.deployment_ids)


class DeploymentView(OneDeploymentView):
    def lock(self, deployment_id: str) -> None:
        deployment_lock(self.deployment(deployment_id))

    @operation("deployments.retrieve", response=DeploymentObject, tagged_by=DeploymentUpdateInput)
    def get(self, request: Request, deployment_id: str) -> DeploymentObject:
        return DeploymentObject.of(self.deployment(deployment_id))

    @operation(
        "deployments.update",
        request=DeploymentUpdateInput,
        response=DeploymentObject,
        tagged_by=DeploymentUpdateInput,
    )
    def patch(self, request: Request, deployment_id: str, body: DeploymentUpdateInput) -> DeploymentObject:
        """Changes the speculator, the adapters or other settings. A `speculator_id` of null removes the speculator.

        The endpoint finishes its requests and restarts, one replica after another. It does not restart when only
        `remember_answers`, `replicas`, `scaling` or `acceptance_alarm` changes.
        """
        update_from(self.deployment(deployment_id), body)
        return DeploymentObject.of(self.deployment(deployment_id))

    @operation("deployments.delete", response=Deleted)
    def delete(self, request: Request, deployment_id: str) -> Deleted:
        deployment = deployment_delete(deployment=self.deployment(deployment_id))
        return Deleted(id=deployment.pk, object="deployment")


class DeploymentCostView(OneDeploymentView):
    @operation("deployments.cost", summary="Read the cost of a deployment", response=DeploymentCost)
    def get(self, request: Request, deployment_id: str) -> DeploymentCost:
        """The cost so far of the device time of the endpoint's processes, without the tokens of requests."""
        return DeploymentCost.of(self.deployment(deployment_id))


class DeploymentEventsView(OneDeploymentView):
    @operation(
        "deployments.events", summary="List the events of a deployment", response=Page[EventObject], query=PAGING
    )
    def get(self, request: Request, deployment_id: str) -> Response:
        """The events of this deployment."""
        events_number(self.organization)
        events = events_list(self.organization, object_id=self.deployment(deployment_id).pk)
        return paginate(events, request, EventObject.of, by="seq", id_field="id")


class DeploymentMetricsView(OneDeploymentView):
    @operation(
        "deployments.metrics",
        summary="Read the metrics of a deployment",
        response=DeploymentMetricsPage,
        query={
            "start_time": "Unix seconds; by default one hour ago.",
            "end_time": "Unix seconds; by default now.",
            "bucket_width": "`1m` (the default), `1h` or `1d`.",
            "limit": "The number of buckets.",
            "page": "`next_page` of the previous page.",
        },
    )
    def get(self, request: Request, deployment_id: str) -> DeploymentMetricsPage:
        """Metrics over time. They are computed from the engine's counters, which are kept for 7 days."""
        deployment, params = self.deployment(deployment_id), request.query_params.copy()
        params.setdefault("bucket_width", "1m")
        params.setdefault("start_time", str(int(timezone.now().timestamp()) - 3600))
        window = parse_window(params)
        buckets, seconds = figures_by_bucket(deployment, window), window.width.seconds
        more = has_more(params, window)
        return DeploymentMetricsPage(
            data=[DeploymentMetrics.of(start, figures, seconds=seconds) for start, figures in buckets.items()],
            has_more=more,
            next_page=str(int(window.end.timestamp())) if more else None,
        )


class DeploymentStartView(OneDeploymentView):
    @operation("deployments.start", response=DeploymentObject, status=202)
    def post(self, request: Request, deployment_id: str) -> DeploymentObject:
        """Sets `desired_state` to `running`. `state` follows within seconds."""
        return DeploymentObject.of(deployment_start(deployment=self.deployment(deployment_id)))


class DeploymentStopView(OneDeploymentView):
    @operation("deployments.stop", response=DeploymentObject, status=202)
    def post(self, request: Request, deployment_id: str) -> DeploymentObject:
        """From now on no new request reaches the endpoint. It finishes the requests that it has."""
        return DeploymentObject.of(deployment_stop(deployment=self.deployment(deployment_id)))
