"""What a customer may ask of a pipeline: checked at the border, with defaults. Unknown keys are an error."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from control.core.api.errors import ApiError
from workers.hyperparameters.fields import HyperparameterError
from workers.hyperparameters.kinds import read_hyperparameters

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"  # also an endpoint's name


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Training(BaseModel):
    """Other keys are hyperparameters of the kind."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    kind: str = "medusa"
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    initial_speculator: str | None = None  # one of the same kind and model to go on from


class Evaluation(_Strict):
    concurrencies: Annotated[list[Annotated[int, Field(ge=1, le=256)]], Field(min_length=1, max_length=8)] = [1]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    price_per_gpu_hour: Annotated[float, Field(ge=0, le=100_000)] | None = None  # USD; else the installation's


class Gate(_Strict):
    min_speedup: Annotated[float, Field(ge=0)] = 1.0
    min_acceptance_length: Annotated[float, Field(ge=0)] | None = None
    outputs_equal: bool = True


class PipelineRequest(_Strict):
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    model: str
    prompts_file: str | None = None
    distillation_id: str | None = None  # answers that are there already, instead of prompts_file
    held_out_file: str | None = None
    held_out: Annotated[int, Field(ge=1)] | None = None  # rows to split off the prompts; only without held_out_file
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    gate: Gate = Gate()
    deploy: bool = True
    quote_id: str | None = None  # whose cap pauses it


def parse_pipeline_request(body: Any) -> PipelineRequest:
    """Raises: ApiError: 400, naming the first field at fault."""
    if not isinstance(body, dict):
        raise ApiError(400, f"The body must be a JSON object, got {type(body).__name__}.", "invalid_value")
    try:
        request = PipelineRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"])
        got = "" if first["type"] == "missing" else f", got {ascii(first['input'])[:60]}"
        raise ApiError(400, f"{param}: {first['msg']}{got}", _code(first["type"]), param) from None
    _check_hyperparameters(request.training)
    _check_prompts(request)
    if request.held_out_file is not None and request.held_out is not None:
        message = "held_out splits rows off prompts_file; it cannot be given together with held_out_file"
        raise ApiError(400, message, "invalid_value", "held_out")
    return request


def _check_prompts(request: PipelineRequest) -> None:
    if (request.prompts_file is None) == (request.distillation_id is None):
        message = "a pipeline takes prompts_file or distillation_id, and not both"
        code = "missing_required_parameter" if request.prompts_file is None else "invalid_value"
        raise ApiError(400, message, code, "prompts_file")
    if request.distillation_id is not None and request.held_out_file is None:
        message = "held_out_file is required with distillation_id: its prompts were all answered, to be trained on"
        raise ApiError(400, message, "missing_required_parameter", "held_out_file")


def _check_hyperparameters(training: Training) -> None:
    """Now rather than after the model has answered every prompt. Raises: ApiError: 400."""
    try:
        read_hyperparameters(training.kind, training.model_extra or {})
    except HyperparameterError as error:
        code = "invalid_value" if error.known else "unknown_parameter"
        param = f"training.{error.name[:80]}"
        raise ApiError(400, f"{param}: {error}", code, param) from None


def _code(error_type: str) -> str:
    return {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}.get(
        error_type, "invalid_value"
    )
