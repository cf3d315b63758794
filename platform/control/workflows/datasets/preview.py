"""Shows the first valid rows of a file as tokens. `in_loss` says whether a token counts in the training loss.

A speculator learns from answers of the model, so only tokens of answers count in the loss. A row without an answer has
no such tokens yet, because the model writes the answer during the distillation.
"""

from contextlib import suppress
from typing import Any

from control.core.api.errors import ApiError
from control.data.files.models import File
from control.workflows.datasets.formats import Example
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.reader import model_reader
from control.workflows.datasets.services import file_examine
from control.workflows.prompt_files.lines import Line

MAX_PREVIEW_TOKENS = 2_000  # of one row


class _LimitReached(Exception):
    """Enough rows are read: the rest of the file need not be read."""


def dataset_preview(dataset: Dataset, *, limit: int) -> list[dict[str, Any]]:
    """Raises: ApiError: 400, the dataset has no model, or no tokenizer on this machine; 404, the file is deleted."""
    readings: list[dict[str, Any]] | None = None
    rows = _first(dataset.file, limit)
    if dataset.base_model is not None:
        with model_reader(dataset.organization, dataset.base_model, num_shown=MAX_PREVIEW_TOKENS) as reader:
            for _, example in rows:
                reader.send(example)
            readings = reader.readings()
    if readings is None:
        message = "A preview shows tokens, so it needs a dataset with a `model` whose tokenizer is on this machine."
        raise ApiError(400, message, "tokenizer_not_available", "model")
    return [_row(*row, reading) for row, reading in zip(rows, readings, strict=True)]


def _first(file: File, limit: int) -> list[tuple[int, Example]]:
    rows: list[tuple[int, Example]] = []

    def collect(example: Example, line: Line) -> None:
        rows.append((line.number, example))
        if len(rows) == limit:
            raise _LimitReached

    with suppress(_LimitReached):
        file_examine(file, on_example=collect)
    return rows


def _row(number: int, example: Example, reading: dict[str, Any]) -> dict[str, Any]:
    origin = {"line": number, "custom_id": example.custom_id}
    if reading["error"] is None:
        return {**origin, **reading}
    error = ApiError(400, reading["error"], "chat_template_error", "messages")
    return {**origin, "error": error.body()["error"], "tokens": []}
