"""Example objects and request bodies of distillations, for the tests that cover all routes."""

from control.workflows.distillations.models import Distillation
from control.workflows.distillations.services import distillation_create
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def distillation(world: World) -> Distillation:
    return distillation_create(organization=world.organization, base_model=world.base_model, prompts_file=world.file)


IDS: Ids = {
    "distillation_id": lambda world: world.distillation.pk,
}
BODIES: Bodies = {
    "POST /v1/distillations": Body(
        lambda world: {"model": world.base_model.name, "prompts_file": world.file.pk},
        {"model": "name", "prompts_file": "file_id", "quote_id": "quote_id"},
    ),
    "POST /v1/distillations/{distillation_id}/cancel": NO_BODY,
}
