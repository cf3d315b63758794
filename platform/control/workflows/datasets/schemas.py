"""Requests and responses of datasets."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.errors import ApiError
from control.core.api.schemas import Figures, IntRange, OneOf, RequestModel, ResponseModel, Text, Unix
from control.workflows.datasets.formats import Format
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.splits import MAX_SPLITS, SPLIT_PATTERN
from control.workflows.prompt_files.schemas import Duplicates, OnSensitiveOption, Sensitive

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # no "@", which separates the version
SplitName = Annotated[str, Text(32, pattern=SPLIT_PATTERN)]
Share = Annotated[float, Field(gt=0, le=1)]
SHOWN_ERRORS = 20  # /v1/datasets/{id}/errors lists all stored errors


class DatasetInput(RequestModel):
    file_id: Annotated[str, Text(80)]
    model: Annotated[str, Text(120)] | None = None
    name: Annotated[str, Text(64, pattern=NAME_PATTERN)] | None = Field(
        default=None, description="The dataset becomes the next version of this name."
    )
    on_sensitive: OnSensitiveOption = None


class SplitInput(RequestModel):
    """How the rows are split: either by `shares` or by `label`."""

    shares: Annotated[dict[SplitName, Share], Field(min_length=1, max_length=MAX_SPLITS)] | None = Field(
        default=None,
        description="The share of the prompts in each split. The sum is at most 1. A hash of the prompt selects the "
        "split, so a prompt is in the same split in all versions of a dataset.",
    )
    seed: Annotated[int, IntRange(0, (1 << 32) - 1)] = Field(default=0, description="Another seed gives other splits.")
    label: Annotated[str, Text(64)] | None = Field(
        default=None, description="A member of the rows. Its value is the name of the split to which the row goes."
    )

    def check(self) -> None:
        """Raises: ApiError: 400, not one of `shares` and `label`, or shares with a sum of more than 1."""
        if (self.shares is None) == (self.label is None):
            code = "missing_required_parameter" if self.shares is None else "invalid_value"
            raise ApiError(400, "a split takes shares or label, and not both", code, "shares")
        if self.shares is not None and (total := sum(self.shares.values())) > 1 + 1e-9:
            raise ApiError(400, f"shares must have a sum of at most 1, got {total}", "invalid_value", "shares")


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
        description="Equal and similar prompts among the valid rows. Null for datasets that were created before "
        "prompts were compared."
    )
    sensitive: Sensitive | None = Field(description="Secrets and personal data. Null if the file was not scanned.")
    origin: SkipValidation[Figures | None] = Field(
        description="The source of the dataset, and the request that made it. Null if the dataset is an uploaded file."
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
            sensitive=Sensitive.of(dataset.sensitive),
            errors=DatasetErrors.of(dataset),
        )


class SplitList(ResponseModel):
    object: Literal["list"] = "list"
    data: list[DatasetObject] = Field(description="The datasets of the splits, in the order of the splits' names.")


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
