"""Base classes and field types of the request and response models in each resource's `schemas.py`.

RequestModel    validates a body; `control.core.api.requests.parse_request` translates its errors
ResponseModel   both builds a response and documents it, so that documents and responses cannot differ
"""

import datetime as dt
from collections.abc import Iterable, Sized
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class OneOf:
    """Restricts a string to `values`. The error message and the OpenAPI document list them."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = tuple(str(value) for value in values)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.values)}

    def _check(self, value: str) -> str:
        if value not in self.values:
            raise PydanticCustomError("one_of", "must be one of {names}", {"names": ", ".join(self.values)})
        return value


class IntRange:
    """Restricts an integer to a range, and refuses booleans, which Python treats as 0 and 1."""

    def __init__(self, low: int, high: int | None = None) -> None:
        self.low, self.high = low, high

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        integer = core_schema.int_schema(ge=self.low, le=self.high)
        return core_schema.no_info_before_validator_function(self._check, integer)

    def _check(self, value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticCustomError("int_type", "Input should be a valid integer")
        return value


class Text:
    """Strips a string and refuses an empty one."""

    def __init__(self, max_length: int | None = None, pattern: str | None = None) -> None:
        self.max_length, self.pattern = max_length, pattern

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(strip_whitespace=True, max_length=self.max_length, pattern=self.pattern)
        return core_schema.no_info_after_validator_function(_refuse_empty, text)


_Sized = TypeVar("_Sized", bound=Sized)


def _refuse_empty(value: _Sized) -> _Sized:
    if not value:
        raise PydanticCustomError("empty", "must not be empty")
    return value


def _to_unix(value: Any) -> Any:
    return int(value.timestamp()) if isinstance(value, dt.datetime) else value


NOT_EMPTY = AfterValidator(_refuse_empty)
Number = Annotated[float, Field(json_schema_extra={"format": "double"})]
BINARY_FIELD = WithJsonSchema({"type": "string", "format": "binary"})  # a file in a multipart form

Unix = Annotated[int, BeforeValidator(_to_unix), Field(description="Unix seconds.")]
Figures = dict[str, Any]

_Item = TypeVar("_Item")


class RequestModel(BaseModel):
    """Unknown keys are an error: if `speculator_id` were misspelt, an endpoint must not start without its speculator.

    A string of digits is accepted as a number, and a number as a string; `strict=True` on the class refuses both.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)


class ResponseModel(BaseModel):
    """A response has exactly the members that its model declares.

    A member that comes from a JSON column is `SkipValidation[...]`: it is sent as it is stored, even if an older
    release stored it in another shape.
    """

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)

    @classmethod
    def from_row(cls, row: Any, **members: Any) -> Self:
        """Builds the response. A required member that is not in `members` is the row's attribute of the same name."""
        for name, field in cls.model_fields.items():
            if field.is_required() and name not in members:
                members[name] = getattr(row, name)
        return cls.model_validate(members)

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(warnings=False)  # pydantic would warn of stored members in another shape


class Page(ResponseModel, Generic[_Item]):
    """Request the next page with `after=<last_id>`."""

    object: Literal["list"]
    data: list[_Item]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """The component's name in the OpenAPI document, which allows no brackets."""
        name: str = params[0].__name__
        return f"{name}Page"


class Deleted(ResponseModel):
    id: str
    object: str
    deleted: Literal[True] = True


class Failure(ResponseModel):
    """Why a base model was refused, or why a deployment or a pipeline failed."""

    code: str
    message: str


class ErrorDetail(ResponseModel):
    message: str = Field(description="A text for people, which may change.")
    type: str
    param: str | None = Field(description="The invalid field.")
    code: str | None = Field(description="A code for programs, which never changes.")


class Error(ResponseModel):
    error: ErrorDetail
