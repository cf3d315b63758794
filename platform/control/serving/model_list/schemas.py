"""OpenAI's model object and its list."""

from typing import Literal, Self

from django.db.models import QuerySet

from control.core.api.schemas import ResponseModel, Unix
from control.models.catalog.models import BaseModel
from control.serving.deployments.models import Deployment

SHARED_OWNER = "slipstream"


class ModelObject(ResponseModel):
    id: str
    object: Literal["model"] = "model"
    created: Unix
    owned_by: str

    @classmethod
    def of(cls, row: BaseModel | Deployment) -> Self:
        return cls.from_row(row, id=row.name, created=row.created_at, owned_by=row.organization_id or SHARED_OWNER)


class ModelList(ResponseModel):
    """The whole list: it has no further pages."""

    object: Literal["list"] = "list"
    data: list[ModelObject]

    @classmethod
    def of(cls, models: QuerySet[BaseModel], deployments: QuerySet[Deployment]) -> Self:
        """A base model with the name of a deployment is left out, because the name selects the deployment."""
        deployment_names, data = {deployment.name for deployment in deployments}, []
        listed: set[str] = set()  # several deployments can serve one fine-tuned adapter
        for deployment in deployments:
            data.append(entry := ModelObject.of(deployment))
            served = [adapter.model_name(deployment.name) for adapter in deployment.adapters.all()]
            data += [entry.model_copy(update={"id": name}) for name in served if name not in listed]
            listed.update(served)
        data += [ModelObject.of(model) for model in models if model.name not in deployment_names]
        return cls(data=data)
