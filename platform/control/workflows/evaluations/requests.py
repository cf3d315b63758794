"""What a customer may ask of an evaluation."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from control.core.api.errors import ApiError

_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}


class EvaluationRequest(BaseModel):
    """Without `prompts_file`, on the prompts that the speculator's pipeline held out."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    speculator_id: str
    prompts_file: str | None = None
    concurrencies: Annotated[list[Annotated[int, Field(ge=1, le=256)]], Field(min_length=1, max_length=8)] = [
        1, 4, 16, 32,
    ]  # fmt: skip
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    repeats: Annotated[int, Field(ge=1, le=10)] = 1
    price_per_gpu_hour: Annotated[float, Field(ge=0, le=100_000)] | None = None  # USD; else the installation's


def parse_evaluation_request(body: Any) -> EvaluationRequest:
    """Raises: ApiError: 400, naming the first field at fault."""
    if not isinstance(body, dict):
        raise ApiError(400, f"The body must be a JSON object, got {type(body).__name__}.", "invalid_value")
    try:
        return EvaluationRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"])[:80]
        raise ApiError(400, f"{param}: {first['msg']}", _CODES.get(first["type"], "invalid_value"), param) from None
