"""What a request for a fine-tuning job may say: OpenAI's words, and beside them `turbo`, ours.

    turbo   kind, hyperparameters, held_out, evaluation, gate, deploy: as in a pipeline
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rest_framework import serializers

from control.core.api.errors import ApiError
from control.core.api.metadata import MetadataInput
from workers.hyperparameters.kinds import read_hyperparameters
from workers.kinds import TRAINED_KINDS

MAX_SUFFIX = 64
MAX_SEED = (1 << 31) - 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Hyperparameters(_Strict):
    """`batch_size` has no counterpart: what a batch holds depends on the kind."""

    n_epochs: Literal["auto"] | Annotated[int, Field(ge=1, le=50)] = "auto"
    batch_size: Literal["auto"] = "auto"
    learning_rate_multiplier: Literal["auto"] | Annotated[float, Field(gt=0, le=100)] = "auto"


class Turbo(_Strict):
    kind: str = "medusa"
    hyperparameters: dict[str, Any] = {}
    held_out: Annotated[int, Field(ge=1)] | None = None
    evaluation: dict[str, Any] = {}
    gate: dict[str, Any] = {"min_speedup": 0.0}  # the answers must be the same; how fast is for the report to say
    deploy: bool = False


class JobInput(MetadataInput):
    model = serializers.CharField(max_length=120)
    training_file = serializers.CharField(max_length=80)
    validation_file = serializers.CharField(max_length=80, allow_null=True, default=None)
    suffix = serializers.RegexField(r"^[A-Za-z0-9._-]*$", max_length=MAX_SUFFIX, allow_null=True, default=None)
    seed = serializers.IntegerField(min_value=0, max_value=MAX_SEED, allow_null=True, default=None)
    hyperparameters = serializers.DictField(allow_null=True, default=None)  # OpenAI's older place for them
    method = serializers.DictField(allow_null=True, default=None)
    integrations = serializers.ListField(allow_null=True, default=None)
    turbo = serializers.DictField(allow_null=True, default=None)

    def validate_integrations(self, integrations: list[Any] | None) -> None:
        if integrations:
            raise serializers.ValidationError("there are none yet; follow the job's events")


def hyperparameters_of(values: Mapping[str, Any]) -> Hyperparameters:
    """From `method.supervised.hyperparameters`, or from `hyperparameters`. Raises: ApiError: 400."""
    method = values["method"]
    if method is None:
        return _parse(Hyperparameters, values["hyperparameters"] or {}, "hyperparameters")
    if (kind := method.get("type", "supervised")) != "supervised":
        raise ApiError(400, f"method.type must be 'supervised', got {kind!a:.60}", "invalid_value", "method.type")
    supervised = method.get("supervised") or {}
    if not isinstance(supervised, dict):
        raise ApiError(400, "method.supervised must be an object", "invalid_value", "method.supervised")
    return _parse(Hyperparameters, supervised.get("hyperparameters") or {}, "method.supervised.hyperparameters")


def turbo_of(values: Mapping[str, Any]) -> Turbo:
    """`turbo`, or `method.turbo`. Raises: ApiError: 400."""
    turbo = values["turbo"]
    if turbo is None and values["method"] is not None:
        turbo = values["method"].get("turbo")
    parsed = _parse(Turbo, turbo or {}, "turbo")
    if parsed.kind not in TRAINED_KINDS:
        message = f"turbo.kind must be one of {', '.join(TRAINED_KINDS)}, got {parsed.kind!a:.60}"
        raise ApiError(400, message, "invalid_value", "turbo.kind")
    return parsed


def training_of(hyperparameters: Hyperparameters, turbo: Turbo, seed: int) -> dict[str, Any]:
    """The pipeline's `training`. What stands in `turbo` goes before OpenAI's words for it."""
    training: dict[str, Any] = {"kind": turbo.kind, "seed": seed}
    if hyperparameters.n_epochs != "auto":
        training["epochs"] = hyperparameters.n_epochs
    if hyperparameters.learning_rate_multiplier != "auto":
        usual = read_hyperparameters(turbo.kind, {}).loop.learning_rate
        training["learning_rate"] = min(1.0, usual * hyperparameters.learning_rate_multiplier)
    return {**training, **turbo.hyperparameters}


_Record = TypeVar("_Record", bound=BaseModel)


def _parse(record: type[_Record], values: Any, param: str) -> _Record:
    try:
        return record.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join([param, *(str(part) for part in first["loc"][:1])])  # behind it: which of two types
        code = "unknown_parameter" if first["type"] == "extra_forbidden" else "invalid_value"
        raise ApiError(400, f"{place}: {first['msg']}", code, place) from None
