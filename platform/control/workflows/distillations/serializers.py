"""Distillations as the API shows them, and what a request for one may say."""

from typing import Any

from rest_framework import serializers

from control.core.api.metadata import MetadataInput
from control.core.api.times import unix
from control.workflows.batches.serializers import batch_body
from control.workflows.distillations.models import Distillation

# Of the batch, as they are.
_SHARED = (
    "model", "status", "errors", "output_file_id", "error_file_id", "request_counts", "usage", "paused", "cost",
    "quote_id", "metadata",
)  # fmt: skip


def distillation_body(distillation: Distillation) -> dict[str, Any]:
    """`distillation` comes from `distillations_list`."""
    batch = batch_body(distillation.batch)
    return {
        "id": distillation.pk,
        "object": "distillation",
        "prompts_file": batch["input_file_id"],
        "batch_id": batch["id"],
        **{name: batch[name] for name in _SHARED},
        "is_trainable": bool(distillation.batch.tokens_key),
        "created_at": unix(distillation.created_at),
    }


class DistillationInput(MetadataInput):
    model = serializers.CharField(max_length=120)
    prompts_file = serializers.CharField(max_length=80)
    quote_id = serializers.CharField(max_length=40, allow_null=True, default=None)
