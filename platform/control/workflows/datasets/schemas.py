"""Requests and responses of datasets."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.schemas import Figures, OneOf, RequestModel, ResponseModel, Text, Unix
from control.workflows.datasets.formats import Format
from control.workflows.datasets.models import Dataset
from control.workflows.prompt_files.schemas import Duplicates

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # no "@", which separates the version
SHOWN_ERRORS = 20  # /v1/datasets/{id}/errors lists all stored errors


class DatasetInput(RequestModel):
    file_id: Annotated[str, Text(80)]
    model: Annotated[str, Text(120)] | None = None
    name: Annotated[str, Text(64, pattern=NAME_PATTERN)] | None = Field(
        default=None, description="The dataset becomes the next version of this name."
    )


class DatasetErrors(ResponseModel):
    object: Literal["list"] = "list"
    data: SkipValidation[list[Figures]]
    total_count: int
    by_code: SkipValidation[dict[str, int]]

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        return cls(data=dataset.errors[:SHOWN_ERRORS], total_count=dataset.num_errors, by_code=dataset.errors_by_code)


class DatasetObject(ResponseModel):
    id: str
    object: Literal["dataset"] = "dataset"
    name: str | None
    version: int | None = Field(description="`NAME@VERSION` and `NAME@latest` are accepted in place of an id.")
    file_id: str
    model: str | None
    status: Annotated[str, OneOf(Dataset.Status)]
    format: Annotated[str, OneOf(Format)] | None
    bytes: int
    num_rows: int
    num_answers: int
    num_tokens: int | None
    num_tokens_exact: bool | None
    errors: DatasetErrors
    duplicates: Duplicates | None = Field(
        description="Equal and similar prompts among the valid rows. Null: the dataset is older than the comparison."
    )
    created_at: Unix

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        return cls.from_row(
            dataset,
            name=dataset.name or None,
            model=None if dataset.base_model is None else dataset.base_model.name,
            format=dataset.format or None,
            bytes=dataset.file.size_bytes,
            num_tokens_exact=None if dataset.num_tokens is None else dataset.tokens_are_exact,
            duplicates=Duplicates.of(dataset.duplicates),
            errors=DatasetErrors.of(dataset),
        )


class _WholeList(ResponseModel):
    """A list that has no further pages."""

    object: Literal["list"] = "list"
    data: SkipValidation[list[Figures]]
    first_id: None
    last_id: None
    has_more: Literal[False] = False

    @classmethod
    def of(cls, data: list[Figures], **members: Any) -> Self:
        return cls(data=data, first_id=None, last_id=None, **members)


class PreviewRows(_WholeList):
    pass


class DatasetErrorList(_WholeList):
    total_count: int
    is_complete: bool
