"""OpenAI's batch object, and what a request for one may say."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from control.billing.usage.schemas import Amount
from control.core.api.fields import Choice
from control.core.api.metadata import MetadataInput
from control.core.api.times import unix
from control.workflows.batches.models import Batch
from control.workflows.batches.services import COMPLETION_WINDOWS
from control.workflows.batches.state import TERMINAL, Status


def batch_body(batch: Batch) -> dict[str, Any]:
    """`batch` comes from `batches.selectors`, or has ended or just begun."""
    return {
        "id": batch.pk,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.base_model.name if batch.base_model else None,
        "errors": _errors(batch),
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": unix(batch.created_at),
        "in_progress_at": unix(batch.in_progress_at),
        "expires_at": unix(batch.expires_at),
        "finalizing_at": unix(batch.finalizing_at),
        "completed_at": unix(batch.completed_at),
        "failed_at": unix(batch.failed_at),
        "expired_at": unix(batch.expired_at),
        "cancelling_at": unix(batch.cancelling_at),
        "cancelled_at": unix(batch.cancelled_at),
        "request_counts": _request_counts(batch),
        "usage": _usage(batch.usage),
        "metadata": batch.metadata,
        "paused": batch.job.paused,  # ours, as all below: why it waits
        "cost": Amount.of(batch.cost_nanousd).as_json(),  # so far
        "quote_id": batch.quote_id,
        "warnings": batch.warnings,  # what was taken though it was not quite right
        "errors_by_code": batch.errors_by_code,  # what stands in the error file
    }


def _errors(batch: Batch) -> dict[str, Any] | None:
    """`total_count` is ours: `data` ends after 1,000 bad lines."""
    if not batch.errors:
        return None
    return {"object": "list", "data": batch.errors, "total_count": batch.num_errors}


def _request_counts(batch: Batch) -> dict[str, int]:
    """`total` is the sum of all others, at any time: the last three are ours.

    Exact once the batch has ended; before that, the sums over finished shards that the selector brings along.
    """
    is_over = batch.status in TERMINAL
    completed = batch.completed if is_over else getattr(batch, "shards_completed", 0)
    failed = batch.failed if is_over else getattr(batch, "shards_failed", 0)
    return {
        "total": batch.total,
        "completed": completed,
        "failed": failed,
        "cancelled": batch.unanswered if batch.status == Status.CANCELLED else 0,
        "expired": batch.unanswered if batch.status == Status.EXPIRED else 0,
        "pending": batch.total - completed - failed - batch.unanswered,
    }


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    return {
        "input_tokens": usage.get("input_tokens", 0),
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage.get("output_tokens", 0),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.get("total_tokens", 0),
    }


class BatchInput(MetadataInput):
    input_file_id = serializers.CharField(max_length=80)
    endpoint = serializers.CharField(max_length=80)
    completion_window = Choice(choices=list(COMPLETION_WINDOWS))
    model = serializers.CharField(max_length=120, allow_null=True, default=None)
    output_expires_after = serializers.DictField(allow_null=True, default=None)
    quote_id = serializers.CharField(max_length=40, allow_null=True, default=None)
