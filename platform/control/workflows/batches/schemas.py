"""Requests and responses of batches: OpenAI's batch object. The descriptions mark our additions to it."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SkipValidation, WithJsonSchema

from control.billing.usage.schemas import Amount
from control.core.api.metadata import Metadata
from control.core.api.schemas import IntRange, OneOf, RequestModel, ResponseModel, Text, Unix
from control.data.files.schemas import ExpiresAfter
from control.models.engines.schemas import EngineOptions, Hardware, ValidateOnly
from control.queue.jobs.fair import LEVELS, NORMAL, level_of
from control.queue.jobs.schemas import QUEUE_POSITION, Blocked, Paused
from control.workflows.batches.choosing import RowClass
from control.workflows.batches.estimates import estimated_end
from control.workflows.batches.models import Batch
from control.workflows.batches.services import COMPLETION_WINDOWS
from control.workflows.batches.state import TERMINAL, Status


class BatchOptions(RequestModel):
    input_file_id: Annotated[str, Text(80)]
    endpoint: Annotated[str, Text(80)]
    completion_window: Annotated[str, OneOf(COMPLETION_WINDOWS)]
    model: Annotated[str, Text(120)] | None = None
    metadata: Metadata | None = None
    output_expires_after: Annotated[
        ExpiresAfter | None, WithJsonSchema({"type": ["object", "null"], "additionalProperties": {}})
    ] = None
    quote_id: Annotated[str, Text(40)] | None = None
    engine: EngineOptions | None = Field(default=None, description="Our addition: options of the engine.")
    priority: Annotated[str, OneOf(LEVELS)] = Field(
        default=NORMAL,
        description="Our addition: among the jobs of the organization, those with a higher priority run first. The "
        "priority does not affect other organizations.",
    )
    hardware: Hardware = None


class BatchInput(BatchOptions):
    validate_only: ValidateOnly = False


class RepairInput(RequestModel):
    rows: Annotated[list[Annotated[str, OneOf(RowClass)]], Field(min_length=1, max_length=len(RowClass))] = Field(
        description="Classes of rows to answer again. `unfinished`: rows without a response, because they never ran, "
        "their result was lost, or they crashed the worker. `failed`: rows that ran without an answer. `cut`: rows "
        "whose answer ended at a limit of its length. All other rows keep their results."
    )
    max_tokens: Annotated[int, IntRange(1, 1 << 24)] | None = Field(
        default=None,
        description="The maximum number of tokens of a new answer, in place of the limits in the input file. It is "
        "required for `cut`. A cut answer is kept if the new limit does not allow a longer answer. Null means the "
        "limits of the batch that is repaired.",
    )


class LineError(ResponseModel):
    code: str
    line: int | None
    message: str
    param: str | None


class LineErrors(ResponseModel):
    object: Literal["list"] = "list"
    data: SkipValidation[list[LineError]]
    total_count: int = Field(description="Our addition: the number of bad lines. `data` contains the first 1,000.")

    @classmethod
    def of(cls, batch: Batch) -> Self | None:
        return cls(data=batch.errors, total_count=batch.num_errors) if batch.errors else None


class RequestCounts(ResponseModel):
    """`total` is the sum of the other counts."""

    total: int
    completed: int
    failed: int
    cancelled: int = Field(description="Our addition: rows that were not run because the batch was cancelled.")
    expired: int = Field(description="Our addition: rows that were not run because the completion window ended.")
    pending: int = Field(description="Our addition: rows that have no result yet.")

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """While the batch runs, the counts are sums over its finished shards, which only `batches_list` computes."""
        is_over = batch.status in TERMINAL
        completed = batch.completed if is_over else getattr(batch, "shards_completed", 0)
        failed = batch.failed if is_over else getattr(batch, "shards_failed", 0)
        return cls(
            total=batch.total,
            completed=completed,
            failed=failed,
            cancelled=batch.unanswered if batch.status == Status.CANCELLED else 0,
            expired=batch.unanswered if batch.status == Status.EXPIRED else 0,
            pending=batch.total - completed - failed - batch.unanswered,
        )


class CachedTokens(ResponseModel):
    cached_tokens: int


class ReasoningTokens(ResponseModel):
    reasoning_tokens: int


class BatchUsage(ResponseModel):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int

    @classmethod
    def of(cls, batch: Batch) -> Self:
        return cls(
            input_tokens=batch.usage.get("input_tokens", 0),
            input_tokens_details=CachedTokens(cached_tokens=0),
            output_tokens=batch.usage.get("output_tokens", 0),
            output_tokens_details=ReasoningTokens(reasoning_tokens=0),
            total_tokens=batch.usage.get("total_tokens", 0),
        )


class Truncated(ResponseModel):
    """Numbers of answers that reached the length limits of their rows, counted when the batch has ended."""

    in_trace: int = Field(description="The number of answers that reached the limit within the reasoning trace.")
    in_answer: int = Field(description="The number of answers that reached the limit after the reasoning trace.")
    continued: int = Field(description="The number of truncated answers that were continued past the limit.")
    unfinished: int = Field(description="The number of truncated answers that still have no end.")
    dropped: int = Field(description="The number of unfinished answers that training leaves out.")

    @classmethod
    def of(cls, batch: Batch) -> Self | None:
        if batch.truncated is None:
            return None
        drops = batch.on_truncation == Batch.OnTruncation.DROP
        return cls(**batch.truncated, dropped=batch.truncated["unfinished"] if drops else 0)


class Repair(ResponseModel):
    """Which rows of `resumed_from` are answered again, and the limit of their answers."""

    rows: list[str]
    max_tokens: int | None = Field(description="Null means the limits in the input file.")


class BatchObject(ResponseModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: LineErrors | None
    input_file_id: str
    completion_window: str
    status: Annotated[str, OneOf(Status)]
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
    metadata: SkipValidation[dict[str, str]]
    paused: SkipValidation[Paused | None] = Field(
        description="Our addition: why the batch is paused. `status` stays `in_progress`."
    )
    priority: Annotated[str, OneOf(LEVELS)] = Field(description="Our addition: the priority of the request.")
    queue_position: int | None = Field(description=f"Our addition: {QUEUE_POSITION}")
    blocked: SkipValidation[Blocked | None] = Field(
        description="Our addition: why no worker claims the waiting batch. Null if a worker will claim it, or if the "
        "batch is not waiting."
    )
    estimated_finished_at: Unix | None = Field(
        description="Our addition: when all rows will be answered at the rate so far. Null until the batch runs and "
        "has committed rows. The batch ends at `expires_at` at the latest."
    )
    cost: Amount = Field(description="Our addition: the cost so far.")
    quote_id: str | None = Field(
        description="Our addition: the quote. The batch is paused when the cost reaches the cap of the quote."
    )
    engine: EngineOptions = Field(description="Our addition: the options of the engine.")
    hardware: str | None = Field(description="Our addition: the requested device. Null means any device.")
    resumed_from: str | None = Field(description="Our addition: the batch whose finished rows this batch copies.")
    rows_copied: int = Field(
        description="Our addition: the number of rows copied from `resumed_from`. `usage` and `cost` exclude them."
    )
    repair: SkipValidation[Repair | None] = Field(
        description="Our addition: which rows of `resumed_from` this batch answers again. Null means the unfinished "
        "rows."
    )
    errors_by_code: SkipValidation[dict[str, int]] = Field(
        description="Our addition: the number of rows in the error file, by error code."
    )
    truncated: Truncated | None = Field(
        description="Our addition: the numbers of answers that reached a length limit. Null until the batch has ended."
    )
    warnings: SkipValidation[list[Any]] = Field(
        description="Our addition: problems in the input file that do not prevent the batch from running."
    )

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """While the batch runs, its row must come from `batches_list`. Otherwise the counts of finished rows are 0.

        Without `waiting_described`, `queue_position` and `blocked` are null.
        """
        return cls.from_row(
            batch,
            model=None if batch.base_model is None else batch.base_model.name,
            errors=LineErrors.of(batch),
            request_counts=RequestCounts.of(batch),
            usage=BatchUsage.of(batch),
            paused=batch.job.paused,
            priority=level_of(batch.job),
            queue_position=batch.job.queue_position,
            blocked=batch.job.blocked,
            estimated_finished_at=estimated_end(batch),
            cost=Amount.of(batch.cost_nanousd),
            engine=EngineOptions.model_validate(batch.engine or {}),
            hardware=batch.job.hardware or None,
            resumed_from=batch.resumed_from_id,
            rows_copied=batch.copied,
            truncated=Truncated.of(batch),
        )
