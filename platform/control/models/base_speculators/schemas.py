"""Responses of base speculators."""

from typing import Literal, Self

from pydantic import Field

from control.core.api.schemas import ResponseModel, Unix
from control.models.catalog.models import BaseSpeculator


class BaseSpeculatorObject(ResponseModel):
    id: str = Field(description="Requests accept this id wherever they take the id of a speculator.")
    object: Literal["base_speculator"] = "base_speculator"
    name: str
    version: int
    kind: str
    description: str
    model: str = Field(
        description="The model for which the speculator was trained. Every organization may use this model."
    )
    target_revision: str
    created_at: Unix

    @classmethod
    def of(cls, base_speculator: BaseSpeculator) -> Self:
        return cls.from_row(base_speculator, model=base_speculator.base_model.name)
