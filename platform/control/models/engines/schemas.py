"""Options of an engine, and the plan of its memory on the installation's devices."""

from typing import Annotated, Literal

from pydantic import Field

from control.core.api.schemas import IntRange, RequestModel, ResponseModel, Text

MAX_DRAFT_BUDGET = 256
MAX_FURTHER_ARMS = 4  # of an evaluation (`compare_with`)

ValidateOnly = Annotated[
    bool, Field(strict=True, description="Create nothing and answer with the plan of the memory. Uses no quota.")
]

Hardware = Annotated[
    Annotated[str, Text(80)] | None,
    Field(
        description="Model or kind of the device, as `name` or `device_kind` of GET /v1/hardware. Null: any device "
        "whose memory suffices."
    ),
]


class EngineOptions(RequestModel):
    """How the engine uses its device's memory, and how it drafts."""

    weights: Literal["auto", "bf16", "int8", "int4", "fp8"] = Field(
        default="auto",
        description="`auto`: as published. `int4` needs a CPU and `fp8` a GPU. Answers differ between the formats.",
    )
    kv_dtype: Literal["auto", "bf16", "float32"] = Field(
        default="auto", description="The dtype of the KV cache, which must be the model's. `auto`: the model's."
    )
    max_context: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="Tokens of prompt and answer together. Null: as many as the model allows and as fit."
    )
    max_concurrency: Annotated[int, Field(ge=1, le=256)] | None = Field(
        default=None,
        description="Maximum number of requests that are answered at once; others wait. Null: 16 for a deployment, the "
        "highest of an evaluation's concurrencies, and for a batch as many as fit.",
    )
    memory_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="Share of the memory that the engine may use. Null: nearly all of a GPU; on a CPU, 1 GiB for the "
        "KV cache.",
    )
    drafting: Literal["none", "ngram", "suffix", "native_mtp", "speculator"] | None = Field(
        default=None,
        description="Null: the speculator if there is one; otherwise `none` for a deployment and `ngram` for a batch.",
    )
    draft_budget: Annotated[int, IntRange(0, MAX_DRAFT_BUDGET)] | None = Field(
        default=None, description="Drafted tokens per request and step. Null: decided from measured costs."
    )


class MemoryParts(ResponseModel):
    """Bytes on the device."""

    weights: int
    speculator: int
    adapters: int
    work_space: int = Field(description="Activations, logits and tables of a pass.")
    runtime: int = Field(description="The process without a model.")
    kv_cache: int


class SequenceCount(ResponseModel):
    tokens: int = Field(description="Prompt and answer together.")
    num_sequences: int = Field(description="Sequences of this length that are answered at once.")


class Reason(ResponseModel):
    """Why an engine does not fit, or why that is unknown."""

    code: str
    message: str


class DevicePlan(ResponseModel):
    """How an engine would use the memory of one device of this kind."""

    device_kind: str = Field(description="`cuda` or `cpu`.")
    hardware: str | None = Field(description="Name of the device, if the request asks for one.")
    fits: bool | None = Field(description="Null: unknown; `reason` says why.")
    reason: Reason | None = Field(description="Null: it fits.")
    memory_bytes: int | None = Field(description="Memory that the engine may use. Null: no bound, or unknown.")
    parts: MemoryParts | None = Field(description="If it does not fit: what one sequence needs. Null: unknown.")
    max_context: int | None = Field(description="Tokens of prompt and answer together.")
    max_concurrency: int | None = Field(description="Null: as many as fit, and that is unknown.")
    kv_tokens: int | None = Field(description="Tokens of all requests in progress together.")
    sequences: list[SequenceCount]
    price_per_hour: float | None = Field(description="USD for one device. Null: no price is set.")


class EnginePlan(ResponseModel):
    object: Literal["engine.plan"] = "engine.plan"
    devices: list[DevicePlan] = Field(description="One for each kind of device of the installation.")
    warnings: list[str] = Field(description="What the plan leaves out, caps, or what was measured otherwise.")
