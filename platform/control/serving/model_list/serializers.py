"""OpenAI's model object."""

from typing import Any

from control.core.api.times import unix
from control.models.catalog.models import BaseModel
from control.serving.deployments.models import Deployment

SHARED_OWNER = "slipstream"


def base_model_body(model: BaseModel) -> dict[str, Any]:
    owner = model.organization_id or SHARED_OWNER
    return {"id": model.name, "object": "model", "created": unix(model.created_at), "owned_by": owner}


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
