"""Example objects and request bodies of pipelines, for the tests that cover all routes."""

from typing import Any

from control.workflows.pipelines.models import Pipeline
from tests.control.workflows.pipelines.helpers import make_pipeline
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def pipeline(world: World) -> Pipeline:
    return make_pipeline(world.organization, base_model=world.base_model, name=f"p-{world.tag}")


def _pipeline(world: World) -> dict[str, Any]:
    return {"name": "new", "model": world.base_model.name, "prompts_file": world.file.pk}


IDS: Ids = {
    "pipeline_id": lambda world: world.pipeline.pk,
}
BODIES: Bodies = {
    "POST /v1/pipelines": Body(
        _pipeline,
        {
            "model": "name",
            "prompts_file": "file_id",
            "held_out_file": "file_id",
            "training.initial_speculator": "speculator_id",
            "quote_id": "quote_id",
        },
    ),
    "POST /v1/pipelines/{pipeline_id}/cancel": NO_BODY,
    "POST /v1/pipelines/{pipeline_id}/resume": NO_BODY,
}
