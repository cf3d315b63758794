"""/v1/deployments/{id}/rollouts: another speculator, on a share of the traffic first."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.paging import paginate
from control.models.catalog.selectors import speculator_get
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import deployment_get
from control.serving.rollouts.decision import Terms
from control.serving.rollouts.selectors import rollout_get, rollouts_list
from control.serving.rollouts.serializers import RolloutInput, rollout_body
from control.serving.rollouts.services import rollout_cancel, rollout_create
from control.tenants.authentication.views import OrganizationView


class _OfDeployment(OrganizationView):
    scope = "deployments"

    def deployment(self, deployment_id: str) -> Deployment:
        return deployment_get(self.organization, deployment_id, only=self.key.deployment_ids)


class RolloutsView(_OfDeployment):
    def get(self, request: Request, deployment_id: str) -> Response:
        return paginate(rollouts_list(self.deployment(deployment_id)), request, rollout_body)

    def post(self, request: Request, deployment_id: str) -> Response:
        """A process of its own answers the share; it is promoted or rolled back by acceptance length and errors."""
        deployment, form = self.deployment(deployment_id), RolloutInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        terms = Terms(
            min_requests=values["min_requests"],
            max_acceptance_drop=values["max_acceptance_drop"],
            max_error_rate=values["max_error_rate"],
        )
        rollout = rollout_create(
            deployment=deployment,
            speculator=speculator_get(self.organization, values["speculator_id"]),
            share_percent=values["share_percent"],
            terms=terms,
            max_seconds=values["max_seconds"],
        )
        return Response(rollout_body(rollout), status=201)


class RolloutView(_OfDeployment):
    def get(self, request: Request, deployment_id: str, rollout_id: str) -> Response:
        return Response(rollout_body(rollout_get(self.deployment(deployment_id), rollout_id)))


class RolloutCancelView(_OfDeployment):
    def post(self, request: Request, deployment_id: str, rollout_id: str) -> Response:
        """Back to what served before."""
        deployment = self.deployment(deployment_id)
        rollout_cancel(rollout=rollout_get(deployment, rollout_id))
        return Response(rollout_body(rollout_get(deployment, rollout_id)))
