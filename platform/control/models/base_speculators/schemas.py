"""Responses of base speculators."""

from typing import Literal, Self

from pydantic import Field

from control.core.api.schemas import ResponseModel, Unix
from control.models.catalog.models import BaseSpeculator


class BaseSpeculatorObject(ResponseModel):
    id: str = Field(description="Pass it wherever a request takes the id of a speculator.")
    object: Literal["base_speculator"] = "base_speculator"
    name: str
    version: int
    kind: str
    description: str
    model: str = Field(description="A model that every organization may use.")
    target_revision: str
    created_at: Unix

    @classmethod
    def of(cls, base_speculator: BaseSpeculator) -> Self:
        return cls.from_row(base_speculator, model=base_speculator.base_model.name)
