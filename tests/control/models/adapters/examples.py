"""Example objects and request bodies of adapters, for the tests that cover all routes."""

from control.data.files.models import File
from control.models.adapters.models import Adapter
from control.models.adapters.services import adapter_create
from tests.control.models.adapters.support import make_adapter_files
from tests.control.world import Bodies, Body, Ids, World


def adapter_files(world: World) -> tuple[File, File]:
    return make_adapter_files(world.organization)


def adapter(world: World) -> Adapter:
    config, weights = world.adapter_files
    return adapter_create(
        organization=world.organization,
        name=f"a-{world.tag}",
        base_model=world.base_model,
        config_file=config,
        weights_file=weights,
    )


IDS: Ids = {
    "adapter_id": lambda world: world.adapter.pk,
}
BODIES: Bodies = {
    "POST /v1/adapters": Body(
        lambda world: {
            "name": "new",
            "model": world.base_model.name,
            "config_file": world.adapter_files[0].pk,
            "weights_file": world.adapter_files[1].pk,
        },
        {"model": "name", "config_file": "file_id", "weights_file": "file_id"},
    ),
}
