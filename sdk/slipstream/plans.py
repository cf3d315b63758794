"""Plans of an engine's memory. The `plan` methods of the client return them and create nothing.

The argument `engine` of deployments, batches, distillations, evaluations and pipelines is a mapping with any of
`weights` ("auto", "bf16", "int8", "int4" or "fp8"), `kv_dtype`, `max_context` (tokens), `max_concurrency`,
`memory_share`, `drafting` and `draft_budget`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from slipstream.records import Record, record


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan(Record):
    """How an engine would use one device of this kind."""

    device_kind: str  # cuda, cpu
    hardware: str | None = None  # name of the device, if the request asks for one
    fits: bool | None = None  # None if it is unknown; `reason` then says why
    reason: Mapping[str, str] | None = None  # keys: code, message
    memory_bytes: int | None = None  # bytes that the engine may use; None: no limit, or unknown
    parts: Mapping[str, int] | None = None  # bytes; keys: weights, speculator, adapters, work_space, runtime, kv_cache
    max_context: int | None = None  # number of tokens of prompt and answer together
    max_concurrency: int | None = None
    kv_tokens: int | None = None  # number of tokens of all requests in progress together
    sequences: Sequence[Mapping[str, int]] = ()  # how many sequences of a length fit; keys: tokens, num_sequences
    price_per_hour: float | None = None  # USD


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan(Record):
    devices: tuple[DevicePlan, ...]  # one for each kind of device of the installation
    warnings: Sequence[str] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return record(cls, {**values, "devices": tuple(record(DevicePlan, plan) for plan in values["devices"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan(Record):
    """The memory plans of the engines of a pipeline's stages. A field is None if the pipeline has no such stage."""

    distillation: EnginePlan | None
    evaluation: EnginePlan
    deployment: EnginePlan | None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        plans = {
            stage: None if values.get(stage) is None else EnginePlan.from_json(values[stage])
            for stage in ("distillation", "evaluation", "deployment")
        }
        return record(cls, plans)
