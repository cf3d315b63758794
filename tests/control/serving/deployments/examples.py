"""Example objects and request bodies of deployments, for the tests that cover all routes."""

from control.serving.captures.services import capture_set, request_capture
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_create
from tests.control.factories import chat_row
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def deployment(world: World) -> Deployment:
    made = deployment_create(organization=world.organization, name=f"d-{world.tag}", base_model=world.base_model)
    capture_set(deployment=made, hours=24)
    request_capture(deployment_id=made.pk, endpoint="/v1/chat/completions", body=chat_row()["body"])
    return made


IDS: Ids = {
    "deployment_id": lambda world: world.deployment.pk,
}
BODIES: Bodies = {
    "POST /v1/deployments": Body(
        lambda world: {"name": "new", "model": world.base_model.name},
        {"model": "name", "speculator_id": "speculator_id", "adapters.0": "adapter_id"},
    ),
    "PATCH /v1/deployments/{deployment_id}": Body(
        lambda world: {"speculator_id": None}, {"speculator_id": "speculator_id", "adapters.0": "adapter_id"}
    ),
    "POST /v1/deployments/{deployment_id}/start": NO_BODY,
    "POST /v1/deployments/{deployment_id}/stop": NO_BODY,
}
