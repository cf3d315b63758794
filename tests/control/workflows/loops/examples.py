"""Example objects and request bodies of loops and their rounds, for the tests that cover all routes."""

from typing import Any

from control.core.api.requests import parse_request
from control.workflows.loops.models import Loop, LoopRound
from control.workflows.loops.requests import set_from
from control.workflows.loops.schemas import LoopInput
from tests.control.world import Bodies, Body, Ids, World

_SETTINGS: dict[str, Any] = {
    "triggers": {"acceptance_drop": True, "every_hours": 168},
    "limits": {"monthly_budget": 50},
    "recipe": {"kind": "medusa", "max_seconds": 3600},
}


def loop(world: World) -> Loop:
    return set_from(world.deployment, parse_request(LoopInput, _SETTINGS))


def loop_round(world: World) -> LoopRound:
    return LoopRound.objects.create(
        organization=world.organization,
        deployment=world.loop.deployment,
        trigger=LoopRound.Trigger.SCHEDULE,
        settings={"caller": world.loop.pk},
        status=LoopRound.Status.FAILED,
        reason={"code": "too_few_requests", "message": "Fewer than 200 requests were captured."},
        timeline=[{"status": "capturing", "at": 1_700_000_000}],
    )


def _settings(world: World) -> dict[str, Any]:
    return _SETTINGS if world.loop.enabled else {}


IDS: Ids = {
    "looped_deployment_id": lambda world: world.loop.deployment_id,
    "round_id": lambda world: world.loop_round.pk,
}
BODIES: Bodies = {
    "PUT /v1/deployments/{deployment_id}/loop": Body(_settings),
    "PATCH /v1/deployments/{deployment_id}/loop": Body(lambda world: {"enabled": world.loop.enabled}),
}
