"""Requests and responses of speculators."""

from typing import Annotated, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.schemas import Figures, OneOf, RequestModel, ResponseModel, Text, Unix
from control.models.catalog.models import Speculator
from workers.exports.formats import FORMATS


class ExportInput(RequestModel):
    format: Annotated[str, OneOf(FORMATS)]


class ArchiveInput(RequestModel):
    evaluation_id: Annotated[str, Text(40)] | None = Field(
        default=None, description="The evaluation whose report and certificate are included; the default is the latest."
    )


class ImportInput(RequestModel):
    file_id: Annotated[str, Text(80)]
    format: Annotated[str, OneOf(FORMATS)]
    model: Annotated[str, Text(120)]
    name: Annotated[str, Text(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class SpeculatorObject(ResponseModel):
    id: str
    object: Literal["speculator"] = "speculator"
    name: str
    version: int
    kind: str
    model: str
    base_speculator_id: str | None = Field(
        description="The base speculator that this speculator refers to. Such a speculator has no training, no report "
        "and no export."
    )
    status: Literal["training", "ready", "failed"]
    target_revision: str
    training: SkipValidation[Figures]
    report: SkipValidation[Figures | None]
    created_at: Unix

    @classmethod
    def of(cls, speculator: Speculator) -> Self:
        return cls.from_row(speculator, model=speculator.base_model.name)
