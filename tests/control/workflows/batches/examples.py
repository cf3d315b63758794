"""Example objects and request bodies of batches, for the tests that cover all routes."""

from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_create
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def batch(world: World) -> Batch:
    return batch_create(
        organization=world.organization,
        input_file=world.file,
        endpoint="/v1/chat/completions",
        model=world.base_model.name,
    )


IDS: Ids = {
    "batch_id": lambda world: world.batch.pk,
}
BODIES: Bodies = {
    "POST /v1/batches": Body(
        lambda world: {
            "input_file_id": world.file.pk,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
        {"input_file_id": "file_id", "model": "name", "quote_id": "quote_id"},
    ),
    "POST /v1/batches/{batch_id}/cancel": NO_BODY,
    "POST /v1/batches/{batch_id}/repair": Body(lambda world: {"rows": ["failed", "cut"], "max_tokens": 256}),
    "POST /v1/batches/{batch_id}/resume": NO_BODY,
}
