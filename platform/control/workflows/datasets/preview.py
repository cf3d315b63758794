"""The first good rows of a file as the model reads them, and where the loss falls.

A speculator learns from what the model itself said: loss falls on the answer's tokens and on no others. A row without
an answer has none to show yet: the model writes it when the row is distilled.
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


class _Enough(Exception):
    """The rows asked for have been seen: the rest of the file need not be read."""


def dataset_preview(dataset: Dataset, *, limit: int) -> list[dict[str, Any]]:
    """Raises: ApiError: 400, the dataset names no model, or one whose tokenizer is not here; 404, the file is gone."""
    readings: list[dict[str, Any]] | None = None
    rows = _first(dataset.file, limit)
    if dataset.base_model is not None:
        with model_reader(dataset.organization, dataset.base_model, num_shown=MAX_PREVIEW_TOKENS) as reader:
            for _, example in rows:
                reader.see(example)
            readings = reader.readings()
    if readings is None:
        message = "A preview shows tokens: it needs a dataset with a `model`, whose tokenizer lies on this machine."
        raise ApiError(400, message, "tokenizer_not_available", "model")
    return [_row(*row, reading) for row, reading in zip(rows, readings, strict=True)]


def _first(file: File, limit: int) -> list[tuple[int, Example]]:
    rows: list[tuple[int, Example]] = []

    def see(example: Example, line: Line) -> None:
        rows.append((line.number, example))
        if len(rows) == limit:
            raise _Enough

    with suppress(_Enough):
        file_examine(file, see=see)
    return rows


def _row(number: int, example: Example, reading: dict[str, Any]) -> dict[str, Any]:
    place = {"line": number, "custom_id": example.custom_id}
    if reading["error"] is None:
        return {**place, **reading}
    error = ApiError(400, reading["error"], "chat_template_error", "messages")
    return {**place, "error": error.body()["error"], "tokens": []}
