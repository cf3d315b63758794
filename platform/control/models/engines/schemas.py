"""Options of an engine, and the plan of its memory on the installation's devices."""

from typing import Annotated, Literal

from pydantic import Field

from control.core.api.schemas import IntRange, RequestModel, ResponseModel, Text

MAX_DRAFT_BUDGET = 256
MAX_FURTHER_ARMS = 4  # of an evaluation (`compare_with`)

ValidateOnly = Annotated[
    bool,
    Field(
        strict=True, description="Creates nothing, and returns the plan of the memory. Such a request uses no quota."
    ),
]

Hardware = Annotated[
    Annotated[str, Text(80)] | None,
    Field(
        description="Model or kind of the device: a `name` or a `device_kind` from GET /v1/hardware. Null means any "
        "device whose memory suffices."
    ),
]


class EngineOptions(RequestModel):
    """How the engine uses its device's memory, and how it drafts."""

    weights: Literal["auto", "bf16", "int8", "int4", "fp8"] = Field(
        default="auto",
        description="The format of the weights. `auto` keeps the published format. `int4` needs a CPU, and `fp8` needs "
        "a GPU. Answers differ between the formats.",
    )
    kv_dtype: Literal["auto", "bf16", "float32"] = Field(
        default="auto", description="The dtype of the KV cache. It must be the model's dtype, which `auto` selects."
    )
    max_context: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None,
        description="The maximum number of tokens of a prompt and its answer together. Null means as many as the model "
        "allows and the memory can hold.",
    )
    max_concurrency: Annotated[int, Field(ge=1, le=256)] | None = Field(
        default=None,
        description="The maximum number of requests that are answered at once; other requests wait. Null means 16 for "
        "a deployment, the highest concurrency of an evaluation, and as many as the memory can hold for a batch.",
    )
    memory_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="The share of the device's memory that the engine may use. Null means nearly all memory of a GPU, "
        "and 1 GiB for the KV cache on a CPU.",
    )
    drafting: Literal["none", "ngram", "suffix", "native_mtp", "speculator"] | None = Field(
        default=None,
        description="How tokens are drafted. Null means `speculator` if there is a speculator, and otherwise `none` "
        "for a deployment and `ngram` for a batch.",
    )
    draft_budget: Annotated[int, IntRange(0, MAX_DRAFT_BUDGET)] | None = Field(
        default=None,
        description="The maximum number of drafted tokens per request and decoding step. Null means that the engine "
        "decides from measured costs.",
    )


class MemoryParts(ResponseModel):
    """Bytes on the device."""

    weights: int
    speculator: int
    adapters: int
    work_space: int = Field(description="Activations, logits and tables of a forward pass.")
    runtime: int = Field(description="The memory of the engine process without a model.")
    kv_cache: int


class SequenceCount(ResponseModel):
    tokens: int = Field(description="The length of a sequence: prompt and answer together.")
    num_sequences: int = Field(description="How many sequences of this length can be answered at once.")


class Reason(ResponseModel):
    """Why an engine does not fit, or why that is unknown."""

    code: str
    message: str


class DevicePlan(ResponseModel):
    """How an engine would use the memory of one device of this kind."""

    device_kind: str = Field(description="`cuda` or `cpu`.")
    hardware: str | None = Field(description="The name of the device, if the request names one.")
    fits: bool | None = Field(
        description="Whether the engine fits on the device. Null if this is unknown; `reason` says why."
    )
    reason: Reason | None = Field(
        description="Why the engine does not fit, or why this is unknown. Null if the engine fits."
    )
    memory_bytes: int | None = Field(
        description="The memory that the engine may use, in bytes. Null if it is not limited or not known."
    )
    parts: MemoryParts | None = Field(
        description="The memory that the engine uses, by purpose. If the engine does not fit, the memory that it needs "
        "for one sequence. Null if this is unknown."
    )
    max_context: int | None = Field(description="The maximum number of tokens of a prompt and its answer together.")
    max_concurrency: int | None = Field(
        description="The maximum number of requests that are answered at once. Null if this is unknown."
    )
    kv_tokens: int | None = Field(
        description="The number of tokens that the KV cache can hold, of all requests in progress together."
    )
    sequences: list[SequenceCount]
    price_per_hour: float | None = Field(description="US dollars per hour of one device. Null if no price is set.")


class EnginePlan(ResponseModel):
    object: Literal["engine.plan"] = "engine.plan"
    devices: list[DevicePlan] = Field(description="One plan for each kind of device of the installation.")
    warnings: list[str] = Field(
        description="What is inexact in the plan: a `max_context` that was lowered, a speculator whose size is not "
        "known yet, or options that differ from those of the speculator's report."
    )
