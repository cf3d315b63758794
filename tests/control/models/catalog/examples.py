"""Example objects and request bodies of base models and speculators, for the tests that cover all routes."""

from control.models.catalog.models import BaseModel, Speculator
from control.models.catalog.services import speculator_create, speculator_ready
from tests.control.factories import make_base_model
from tests.control.world import Bodies, Body, Ids, World


def base_model(world: World) -> BaseModel:
    return make_base_model(f"model-{world.tag}", world.organization)


def speculator(world: World) -> Speculator:
    made = speculator_create(
        organization=world.organization, base_model=world.base_model, name=f"s-{world.tag}", kind="medusa"
    )
    return speculator_ready(speculator=made, storage_prefix="s", training={})


IDS: Ids = {
    "name": lambda world: world.base_model.name,
    "model_id": lambda world: world.base_model.pk,
    "speculator_id": lambda world: world.speculator.pk,
}
BODIES: Bodies = {
    "POST /v1/base_models": Body(lambda world: {"name": "new", "source": "s3://models/new"}),
}
