"""Example objects and request bodies of speculators, for the tests that cover all routes."""

from tests.control.world import Bodies, Body

BODIES: Bodies = {
    "POST /v1/speculators": Body(
        lambda world: {
            "file_id": world.file.pk,
            "format": "speculators",
            "model": world.base_model.name,
            "name": "new",
        },
        {"file_id": "file_id", "model": "name"},
    ),
    "POST /v1/speculators/{speculator_id}/archive": Body(lambda world: {}),
    "POST /v1/speculators/{speculator_id}/export": Body(lambda world: {"format": "medusa"}),
}
