"""OpenAI's objects as we answer them; what is ours in them says so."""

from typing import Any, Literal

from pydantic import Field

from control.billing.usage.schemas import Amount as Amount
from control.operations.openapi.shapes import Paused, Shape, Unix


class LineError(Shape):
    code: str
    line: int | None
    message: str
    param: str | None


class LineErrors(Shape):
    object: Literal["list"]
    data: list[LineError]
    total_count: int = Field(description="Ours: of all bad lines; `data` ends after 1,000.")


class RequestCounts(Shape):
    """`total` is the sum of all others."""

    total: int
    completed: int
    failed: int
    cancelled: int = Field(description="Ours.")
    expired: int = Field(description="Ours.")
    pending: int = Field(description="Ours.")


class CachedTokens(Shape):
    cached_tokens: int


class ReasoningTokens(Shape):
    reasoning_tokens: int


class BatchUsage(Shape):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(Shape):
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: LineErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: Unix
    in_progress_at: Unix | None
    expires_at: Unix | None
    finalizing_at: Unix | None
    completed_at: Unix | None
    failed_at: Unix | None
    expired_at: Unix | None
    cancelling_at: Unix | None
    cancelled_at: Unix | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str]
    paused: Paused | None = Field(description="Ours: why it waits, though `in_progress`.")
    cost: Amount = Field(description="Ours: so far.")
    quote_id: str | None = Field(description="Ours: whose cap pauses it.")
    errors_by_code: dict[str, int] = Field(description="Ours: what stands in the error file.")
    warnings: list[Any] = Field(description="Ours: what was taken though it was not quite right.")


class ModelObject(Shape):
    id: str
    object: Literal["model"]
    created: Unix
    owned_by: str


class ModelList(Shape):
    """It has no pages."""

    object: Literal["list"]
    data: list[ModelObject]


class CompletionsUsage(Shape):
    object: Literal["organization.usage.completions.result"]
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    project_id: str | None
    api_key_id: str | None
    user_id: str | None
    model: str | None
    batch: bool | None


class Cost(Shape):
    object: Literal["organization.costs.result"]
    amount: Amount
    line_item: str | None
    quantity: int | None
    quantity_unit: Literal["tokens"] | None
    project_id: str | None
    api_key_id: str | None


class UsageBucket(Shape):
    object: Literal["bucket"]
    start_time: Unix
    end_time: Unix
    results: list[CompletionsUsage]


class CostBucket(Shape):
    object: Literal["bucket"]
    start_time: Unix
    end_time: Unix
    results: list[Cost]


class UsagePage(Shape):
    """`page=<next_page>` asks for the next one."""

    object: Literal["page"]
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


class CostPage(Shape):
    object: Literal["page"]
    data: list[CostBucket]
    has_more: bool
    next_page: str | None
