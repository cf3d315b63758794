"""Requests and responses of adapters."""

from typing import Annotated, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.schemas import RequestModel, ResponseModel, Text, Unix
from control.models.adapters.models import Adapter

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class AdapterInput(RequestModel):
    name: Annotated[str, Text(64, pattern=NAME_PATTERN)]
    model: Annotated[str, Text(120)]
    config_file: Annotated[str, Text(80)] = Field(description="The id of the uploaded adapter_config.json.")
    weights_file: Annotated[str, Text(80)] = Field(description="The id of the uploaded adapter_model.safetensors.")


class AdapterObject(ResponseModel):
    id: str
    object: Literal["adapter"] = "adapter"
    name: str
    model: str
    rank: int
    target_modules: SkipValidation[list[str]]
    bytes: int
    created_at: Unix

    @classmethod
    def of(cls, adapter: Adapter) -> Self:
        return cls.from_row(adapter, model=adapter.base_model.name, bytes=adapter.size_bytes)
