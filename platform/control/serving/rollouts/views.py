"""/v1/deployments/{id}/rollouts: replace the speculator, after a trial on a share of the traffic."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.serving.deployments.views import OneDeploymentView
from control.serving.rollouts.requests import create_from
from control.serving.rollouts.schemas import RolloutInput, RolloutObject
from control.serving.rollouts.selectors import rollout_get, rollouts_list
from control.serving.rollouts.services import rollout_cancel


class RolloutsView(OneDeploymentView):
    @operation("deployments.rollouts.list", response=Page[RolloutObject], query=PAGING)
    def get(self, request: Request, deployment_id: str) -> Response:
        return paginate(rollouts_list(self.deployment(deployment_id)), request, RolloutObject.of)

    @operation("deployments.rollouts.create", request=RolloutInput, response=RolloutObject, status=201)
    def post(self, request: Request, deployment_id: str, body: RolloutInput) -> RolloutObject:
        """A second process with the new speculator answers a share of the requests.

        The acceptance length and the errors of both processes decide whether the new speculator is kept.
        """
        return RolloutObject.of(create_from(self.deployment(deployment_id), body))


class RolloutView(OneDeploymentView):
    @operation("deployments.rollouts.retrieve", response=RolloutObject)
    def get(self, request: Request, deployment_id: str, rollout_id: str) -> RolloutObject:
        return RolloutObject.of(rollout_get(self.deployment(deployment_id), rollout_id))


class RolloutCancelView(OneDeploymentView):
    @operation("deployments.rollouts.cancel", response=RolloutObject)
    def post(self, request: Request, deployment_id: str, rollout_id: str) -> RolloutObject:
        """Rolls back to the speculator that served before the rollout."""
        deployment = self.deployment(deployment_id)
        rollout_cancel(rollout=rollout_get(deployment, rollout_id))
        return RolloutObject.of(rollout_get(deployment, rollout_id))
