"""Plans of an engine's memory: the answers of the service to requests that only ask whether something fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from slipstream.types import record


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """How an engine would use one device of this kind."""

    device_kind: str  # cuda, cpu
    fits: bool | None = None  # None: unknown; `reason` says why
    reason: Mapping[str, str] | None = None  # code, message
    memory_bytes: int | None = None  # that the engine may use; None: no bound, or unknown
    parts: Mapping[str, int] | None = None  # bytes: weights, speculator, adapters, work_space, runtime, kv_cache
    max_context: int | None = None  # tokens of prompt and answer together
    max_concurrency: int | None = None
    kv_tokens: int | None = None  # tokens of all requests in progress together
    sequences: Sequence[Mapping[str, int]] = ()  # tokens, num_sequences: how many sequences of this length fit
    price_per_hour: float | None = None  # USD


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    devices: tuple[DevicePlan, ...]  # one for each kind of device of the installation
    warnings: Sequence[str] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return record(cls, {**values, "devices": tuple(record(DevicePlan, plan) for plan in values["devices"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """None: the pipeline skips the stage."""

    distillation: EnginePlan | None
    evaluation: EnginePlan
    deployment: EnginePlan | None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        stages = ("distillation", "evaluation", "deployment")
        plans = {stage: EnginePlan.from_json(values[stage]) for stage in stages if values.get(stage) is not None}
        return record(cls, {"distillation": None, "deployment": None, **plans})
