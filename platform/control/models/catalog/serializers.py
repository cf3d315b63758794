"""OpenAI's model object, and our speculator."""

from typing import Any

from rest_framework import serializers

from control.core.api.fields import BodyInput
from control.core.api.times import unix
from control.models.catalog.models import BaseModel, Speculator
from control.serving.deployments.models import Deployment

SHARED_OWNER = "slipstream"


def base_model_body(model: BaseModel) -> dict[str, Any]:
    owner = model.organization_id or SHARED_OWNER
    return {"id": model.name, "object": "model", "created": unix(model.created_at), "owned_by": owner}


def registered_model_body(model: BaseModel) -> dict[str, Any]:
    """Ours: what speculators are bound to."""
    return {
        "id": model.pk,
        "object": "base_model",
        "name": model.name,
        "status": model.status,
        "error": model.error,
        "source": model.source or None,
        "model_type": model.model_type or None,
        "revision": model.revision or None,
        "is_shared": model.organization_id is None,
        "created_at": unix(model.created_at),
    }


def deployment_model_body(deployment: Deployment) -> dict[str, Any]:
    return {
        "id": deployment.name,
        "object": "model",
        "created": unix(deployment.created_at),
        "owned_by": deployment.organization_id,
    }


def models_body(models: list[BaseModel], deployments: list[Deployment]) -> dict[str, Any]:
    """OpenAI's list of models has no pages. A deployment hides a base model of its name, as it does for chat."""
    named = {deployment.name for deployment in deployments}
    data = []
    for deployment in deployments:
        data.append(body := deployment_model_body(deployment))
        data += [{**body, "id": f"{deployment.name}:{adapter.name}"} for adapter in deployment.adapters.all()]
    data += [base_model_body(model) for model in models if model.name not in named]
    return {"object": "list", "data": data}


def speculator_body(speculator: Speculator) -> dict[str, Any]:
    return {
        "id": speculator.pk,
        "object": "speculator",
        "name": speculator.name,
        "version": speculator.version,
        "kind": speculator.kind,
        "model": speculator.base_model.name,
        "status": speculator.status,
        "target_revision": speculator.target_revision,
        "training": speculator.training,
        "report": speculator.report,
        "created_at": unix(speculator.created_at),
    }


class BaseModelInput(BodyInput):
    name = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z", max_length=120)
    source = serializers.CharField(  # type: ignore[assignment]  # a field has an attribute of this name
        max_length=1000, help_text="A folder, or s3://bucket/prefix, that operators allow."
    )
