"""Requests and responses of base models."""

from typing import Annotated, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.schemas import Failure, OneOf, RequestModel, ResponseModel, Text, Unix
from control.models.catalog.models import BaseModel

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$"


class BaseModelInput(RequestModel):
    name: Annotated[str, Text(120, pattern=NAME_PATTERN)]
    source: Annotated[str, Text(1000)] = Field(
        description="A folder, or s3://bucket/prefix, below a location that the operators allow."
    )


class BaseModelObject(ResponseModel):
    id: str
    object: Literal["base_model"] = "base_model"
    name: str
    status: Annotated[str, OneOf(BaseModel.Status)]
    error: SkipValidation[Failure | None] = Field(description="Why the model was refused.")
    source: str | None = Field(description="The location from which you registered the model.")
    model_type: str | None
    revision: str | None = Field(
        description="The revision of the weights. A speculator serves only the revision that it was trained for."
    )
    perplexity: float | None = Field(
        description="The perplexity per token on a fixed English text. Null if it was not measured; it is not measured "
        "for shared models."
    )
    is_shared: bool
    created_at: Unix

    @classmethod
    def of(cls, model: BaseModel) -> Self:
        return cls.from_row(
            model,
            source=model.source or None,
            model_type=model.model_type or None,
            revision=model.revision or None,
            is_shared=model.organization_id is None,
        )
