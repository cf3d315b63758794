"""Example objects and request bodies of captures, for the tests that cover all routes."""

from tests.control.world import NO_BODY, Bodies, Body

BODIES: Bodies = {
    "POST /v1/deployments/{deployment_id}/capture": Body(lambda world: {"hours": 24}),
    "POST /v1/deployments/{deployment_id}/capture/file": NO_BODY,
}
