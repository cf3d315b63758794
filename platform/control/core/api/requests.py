"""Validates the body of a request with its model. The error names the first invalid field."""

from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from control.core.api.errors import ApiError
from control.core.api.schemas import RequestModel

_Request = TypeVar("_Request", bound=RequestModel)

MAX_PARAM_LENGTH = 80  # limits names of unknown parameters, which the caller can make arbitrarily long
_COMPLETE_MESSAGES = ("value_error", "empty")  # messages of these error types get no "got ..." at the end


def parse_request(model: type[_Request], body: Any, *, under: str | None = None) -> _Request:
    """Validates `body` with `model`.

    Args: under: the path of the field whose value `body` is; None: `body` is the whole request body.
    Raises: ApiError: 400.
    """
    if not isinstance(body, dict):
        message = f"{under or 'The body'} must be a JSON object, got {type(body).__name__}."
        raise ApiError(400, message, "invalid_value", under)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _translate(error.errors(include_url=False), body, under) from None


def _translate(errors: list[ErrorDetails], body: dict[str, Any], under: str | None) -> ApiError:
    """Reports an unknown parameter before other errors: it is often the misspelt name of a missing parameter."""
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    param = _path(first["loc"], body, under)
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"Unknown parameter: {param!r}.", "unknown_parameter", param)
    if first["type"] == "missing":
        return ApiError(400, f"{param}: This field is required.", "missing_required_parameter", param)
    if first["input"] is None:
        return ApiError(400, f"{param}: This field may not be null.", "missing_required_parameter", param)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] not in _COMPLETE_MESSAGES:
        message += f", got {ascii(first['input'])[:60]}"
    return ApiError(400, f"{param}: {message}", "invalid_value", param)


def _path(location: tuple[int | str, ...], body: Any, under: str | None) -> str:
    """Returns the field's path in the body, such as `training.kind`.

    Pydantic's locations can end in parts that are not in the body, such as the branch of a union. They are dropped.
    """
    path = [] if under is None else [under]
    for part in location:
        if not isinstance(body, dict | list):
            break
        path.append(str(part))
        body = body.get(part) if isinstance(body, dict) else body[int(part)]
    return ".".join(path)[:MAX_PARAM_LENGTH]
