"""/v1/deployments/{id}/loop: retrain the deployment's speculator, in rounds."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.serving.deployments.selectors import deployment_lock
from control.serving.deployments.views import OneDeploymentView
from control.workflows.loops.requests import set_from, update_from
from control.workflows.loops.schemas import LoopInput, LoopObject, LoopRoundObject, LoopUpdateInput
from control.workflows.loops.selectors import loop_get, round_get, rounds_list
from control.workflows.loops.services import loop_delete


class LoopView(OneDeploymentView):
    def lock(self, deployment_id: str) -> None:
        deployment_lock(self.deployment(deployment_id))

    @operation(
        "deployments.loop.retrieve",
        summary="Retrieve a deployment's loop",
        response=LoopObject,
        tagged_by=LoopUpdateInput,
    )
    def get(self, request: Request, deployment_id: str) -> LoopObject:
        return LoopObject.of(loop_get(self.deployment(deployment_id)))

    @operation(
        "deployments.loop.set",
        summary="Set the loop that retrains a deployment's speculator",
        request=LoopInput,
        response=LoopObject,
    )
    def put(self, request: Request, deployment_id: str, body: LoopInput) -> LoopObject:
        """Creates the loop, or replaces all its settings. The requests to the deployment must be captured."""
        return LoopObject.of(set_from(self.deployment(deployment_id), body))

    @operation(
        "deployments.loop.update",
        summary="Change a deployment's loop",
        request=LoopUpdateInput,
        response=LoopObject,
        tagged_by=LoopUpdateInput,
    )
    def patch(self, request: Request, deployment_id: str, body: LoopUpdateInput) -> LoopObject:
        """If `enabled` is set to false, the running round is stopped, and no further round begins."""
        return LoopObject.of(update_from(loop_get(self.deployment(deployment_id)), body))

    @operation("deployments.loop.delete", summary="Delete a deployment's loop", response=Deleted)
    def delete(self, request: Request, deployment_id: str) -> Deleted:
        """Stops the running round and deletes the settings. The rounds stay."""
        loop = loop_get(self.deployment(deployment_id))
        identity = loop.pk
        loop_delete(loop=loop)
        return Deleted(id=identity, object="deployment.loop")


class LoopRoundsView(OneDeploymentView):
    @operation(
        "deployments.loop.rounds.list",
        summary="List the rounds of a deployment's loop",
        response=Page[LoopRoundObject],
        query=PAGING,
    )
    def get(self, request: Request, deployment_id: str) -> Response:
        """Lists all rounds of the deployment, including the rounds of a deleted loop."""
        return paginate(rounds_list(self.deployment(deployment_id)), request, LoopRoundObject.of)


class LoopRoundView(OneDeploymentView):
    @operation(
        "deployments.loop.rounds.retrieve",
        summary="Retrieve a round of a deployment's loop",
        response=LoopRoundObject,
    )
    def get(self, request: Request, deployment_id: str, round_id: str) -> LoopRoundObject:
        return LoopRoundObject.of(round_get(self.deployment(deployment_id), round_id))
