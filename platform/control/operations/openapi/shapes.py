"""What all answers share."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Unix = Annotated[int, Field(description="Unix seconds.")]
Figures = dict[str, Any]

_Item = TypeVar("_Item")


class Shape(BaseModel):
    """Answers hold these members and no others, all of them always there."""

    model_config = ConfigDict(extra="forbid")


class Page(Shape, Generic[_Item]):
    """`after=<last_id>` asks for the next one."""

    object: Literal["list"]
    data: list[_Item]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """The component's: brackets are not allowed there."""
        name: str = params[0].__name__
        return f"{name}Page"


class Paused(Shape):
    """Why work waits: `spend_cap_reached`, until the cap is raised or removed, or the next month; `paused_on_request`,
    until its fine-tuning job is resumed."""

    code: str
    message: str
    cap_id: str | None = Field(description="Of a spend cap or a quote.")


class Deleted(Shape):
    id: str
    object: str
    deleted: Literal[True]


class ErrorDetail(Shape):
    message: str = Field(description="For people; it may change.")
    type: str
    param: str | None = Field(description="The field at fault.")
    code: str | None = Field(description="Permanent, for programs.")


class Error(Shape):
    error: ErrorDetail
