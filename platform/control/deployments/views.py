"""/v1/deployments: ask for an endpoint, look at it, give it another speculator, start, stop and delete it."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.accounts.models import Organization
from control.api.auth import OrganizationView
from control.api.errors import ApiError
from control.api.paging import paginate
from control.catalog.models import Speculator
from control.catalog.selectors import base_model_get, speculator_get
from control.deployments.models import Deployment
from control.deployments.selectors import deployment_get, deployments_list
from control.deployments.serializers import DeploymentInput, DeploymentUpdateInput, deployment_json
from control.deployments.services import (
    deployment_create,
    deployment_delete,
    deployment_start,
    deployment_stop,
    deployment_update,
)
from control.events.selectors import events_list
from control.events.serializers import event_body
from control.events.services import events_number


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
        """Another speculator, or null for none. The endpoint drains and restarts."""
        deployment = self.deployment(deployment_id)
        form = DeploymentUpdateInput(data=request.data)
        form.is_valid(raise_exception=True)
        speculator = _speculator(self.organization, form.validated_data["speculator_id"])
        return Response(deployment_json(deployment_update(deployment=deployment, speculator=speculator)))

    def delete(self, request: Request, deployment_id: str) -> Response:
        deployment = deployment_delete(deployment=self.deployment(deployment_id))
        return Response({"id": deployment.pk, "object": "deployment", "deleted": True})


class DeploymentEventsView(_OneDeployment):
    """What became of it, newest first."""

    def get(self, request: Request, deployment_id: str) -> Response:
        events_number(self.organization)
        events = events_list(self.organization, object_id=self.deployment(deployment_id).pk)
        return paginate(events, request, event_body, by="seq", id_field="id")


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
