"""A valid body for every operation that takes one, and the members of these bodies that name other objects.

The generated tests fail for an operation that is missing here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.control.world import World


@dataclass(frozen=True, slots=True)
class Body:
    make: Callable[[World], dict[str, Any]]
    # Maps a member of the body to the parameter of `World.id_of` whose value it takes.
    refers: Mapping[str, str] = field(default_factory=dict)


def _pipeline(world: World) -> dict[str, Any]:
    return {"name": "new", "model": world.base_model.name, "prompts_file": world.file.pk}


NO_BODY = Body(lambda world: {})
FORM = Body(lambda world: {})  # multipart: the test sends a file
BODIES: Mapping[str, Body] = {
    "POST /v1/api_keys": Body(
        lambda world: {"name": "new"}, {"project_id": "project_id", "deployment_ids.0": "deployment_id"}
    ),
    "POST /v1/api_keys/{key_id}/rotate": Body(lambda world: {"grace_seconds": 60}),
    "POST /v1/members": Body(lambda world: {"email": "new@example.com"}),
    "PATCH /v1/members/{member_id}": Body(lambda world: {"role": "owner"}),
    "POST /v1/projects": Body(lambda world: {"name": "new"}),
    "PATCH /v1/projects/{project_id}": Body(lambda world: {"name": "new"}),
    "POST /v1/projects/{project_id}/archive": NO_BODY,
    "POST /v1/files": FORM,
    "POST /v1/uploads": Body(
        lambda world: {"bytes": 4, "filename": "f", "mime_type": "text/plain", "purpose": "batch"}
    ),
    "POST /v1/uploads/{upload_id}/parts": FORM,
    "POST /v1/uploads/{upload_id}/complete": Body(lambda world: {"part_ids": ["part_1"]}),
    "POST /v1/uploads/{upload_id}/cancel": NO_BODY,
    "POST /v1/datasets": Body(lambda world: {"file_id": world.file.pk}, {"file_id": "file_id", "model": "name"}),
    "POST /v1/batches": Body(
        lambda world: {
            "input_file_id": world.file.pk,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
        {"input_file_id": "file_id", "model": "name", "quote_id": "quote_id"},
    ),
    "POST /v1/batches/{batch_id}/cancel": NO_BODY,
    "POST /v1/jobs/{job_id}/cancel": NO_BODY,
    "POST /v1/fine_tuning/jobs": Body(
        lambda world: {"model": world.base_model.name, "training_file": world.file.pk},
        {"model": "name", "training_file": "file_id", "validation_file": "file_id"},
    ),
    "POST /v1/fine_tuning/jobs/{job_id}/cancel": NO_BODY,
    "POST /v1/fine_tuning/jobs/{job_id}/pause": NO_BODY,
    "POST /v1/fine_tuning/jobs/{job_id}/resume": NO_BODY,
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
    "POST /v1/deployments/{deployment_id}/capture": Body(lambda world: {"hours": 24}),
    "POST /v1/deployments/{deployment_id}/capture/file": NO_BODY,
    "POST /v1/evaluations": Body(
        lambda world: {"speculator_id": world.speculator.pk, "prompts_file": world.file.pk},
        {"speculator_id": "speculator_id", "prompts_file": "file_id"},
    ),
    "POST /v1/evaluations/{evaluation_id}/cancel": NO_BODY,
    "POST /v1/quotes": Body(lambda world: {"dataset_id": world.counted_dataset.pk}, {"dataset_id": "dataset_id"}),
    "POST /v1/base_models": Body(lambda world: {"name": "new", "source": "s3://models/new"}),
    "POST /v1/deployments/{deployment_id}/rollouts": Body(
        lambda world: {"speculator_id": world.speculator.pk}, {"speculator_id": "speculator_id"}
    ),
    "POST /v1/deployments/{deployment_id}/rollouts/{rollout_id}/cancel": NO_BODY,
    "POST /v1/adapters": Body(
        lambda world: {
            "name": "new",
            "model": world.base_model.name,
            "config_file": world.adapter_files[0].pk,
            "weights_file": world.adapter_files[1].pk,
        },
        {"model": "name", "config_file": "file_id", "weights_file": "file_id"},
    ),
    "POST /v1/distillations": Body(
        lambda world: {"model": world.base_model.name, "prompts_file": world.file.pk},
        {"model": "name", "prompts_file": "file_id", "quote_id": "quote_id"},
    ),
    "POST /v1/distillations/{distillation_id}/cancel": NO_BODY,
    "PATCH /v1/quotes/{quote_id}": Body(lambda world: {"cap": 1.5}),
    "POST /v1/spend_caps": Body(lambda world: {"amount": 1_000_000}, {"project_id": "project_id"}),
    "PATCH /v1/spend_caps/{cap_id}": Body(lambda world: {"amount": 2_000_000}),
    "POST /v1/speculators": Body(
        lambda world: {
            "file_id": world.file.pk,
            "format": "speculators",
            "model": world.base_model.name,
            "name": "new",
        },
        {"file_id": "file_id", "model": "name"},
    ),
    "POST /v1/speculators/{speculator_id}/export": Body(lambda world: {"format": "medusa"}),
    "POST /v1/deployments": Body(
        lambda world: {"name": "new", "model": world.base_model.name},
        {"model": "name", "speculator_id": "speculator_id", "adapters.0": "adapter_id"},
    ),
    "PATCH /v1/deployments/{deployment_id}": Body(
        lambda world: {"speculator_id": None}, {"speculator_id": "speculator_id", "adapters.0": "adapter_id"}
    ),
    "POST /v1/deployments/{deployment_id}/start": NO_BODY,
    "POST /v1/deployments/{deployment_id}/stop": NO_BODY,
    "POST /v1/webhook_endpoints": Body(lambda world: {"url": "https://example.com/"}),
    "PATCH /v1/webhook_endpoints/{endpoint_id}": Body(lambda world: {"description": "new"}),
    "POST /v1/webhook_endpoints/{endpoint_id}/rotate_secret": Body(lambda world: {"grace_seconds": 60}),
    "POST /v1/webhook_endpoints/{endpoint_id}/test": NO_BODY,
    "POST /v1/webhook_endpoints/{endpoint_id}/deliveries/{delivery_id}/replay": NO_BODY,
    "POST /v1/chat/completions": Body(
        lambda world: {"model": "nothing", "messages": [{"role": "user", "content": "x"}]}, {"model": "deployment_name"}
    ),
    "POST /v1/completions": Body(lambda world: {"model": "nothing", "prompt": "x"}, {"model": "deployment_name"}),
}


def with_reference(body: dict[str, Any], member: str, value: str) -> dict[str, Any]:
    """Returns `body` with `value` at the path `member`: `deployment_ids.0` names a list, `training.x` an object."""
    name, _, rest = member.partition(".")
    if not rest:
        return {**body, name: value}
    return {**body, name: [value] if rest.isdigit() else {**body.get(name, {}), rest: value}}
