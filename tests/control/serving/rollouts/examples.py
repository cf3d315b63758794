"""Example objects and request bodies of rollouts, for the tests that cover all routes."""

from control.serving.deployments.models import Deployment
from control.serving.rollouts.decision import Terms
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import rollout_create
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def rollout(world: World) -> Rollout:
    Deployment.objects.filter(pk=world.deployment.pk).update(state=Deployment.State.READY)
    world.deployment.refresh_from_db()
    return rollout_create(
        deployment=world.deployment,
        speculator=world.speculator,
        share_percent=10,
        terms=Terms(min_requests=1, max_acceptance_drop=0.1, max_error_rate=0.1),
        max_seconds=60,
    )


IDS: Ids = {
    "rollout_id": lambda world: world.rollout.pk,
}
BODIES: Bodies = {
    "POST /v1/deployments/{deployment_id}/rollouts": Body(
        lambda world: {"speculator_id": world.speculator.pk}, {"speculator_id": "speculator_id"}
    ),
    "POST /v1/deployments/{deployment_id}/rollouts/{rollout_id}/cancel": NO_BODY,
}
