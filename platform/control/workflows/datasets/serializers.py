"""Datasets as the API shows them, and what a request for one may say."""

from typing import Any

from rest_framework import serializers

from control.core.api.fields import BodyInput
from control.core.api.times import unix
from control.workflows.datasets.models import Dataset

SHOWN_ERRORS = 20  # the rest: /v1/datasets/{id}/errors


def dataset_body(dataset: Dataset) -> dict[str, Any]:
    return {
        "id": dataset.pk,
        "object": "dataset",
        "file_id": dataset.file_id,
        "model": dataset.base_model.name if dataset.base_model else None,
        "status": dataset.status,
        "format": dataset.format or None,
        "bytes": dataset.file.size_bytes,
        "num_rows": dataset.num_rows,
        "num_answers": dataset.num_answers,
        "num_tokens": dataset.num_tokens,
        "num_tokens_exact": dataset.tokens_are_exact if dataset.num_tokens is not None else None,
        "errors": {
            "object": "list",
            "data": dataset.errors[:SHOWN_ERRORS],
            "total_count": dataset.num_errors,
            "by_code": dataset.errors_by_code,
        },
        "created_at": unix(dataset.created_at),
    }


class DatasetInput(BodyInput):
    file_id = serializers.CharField(max_length=80)
    model = serializers.CharField(max_length=120, allow_null=True, default=None)
