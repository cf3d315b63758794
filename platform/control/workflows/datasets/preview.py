"""Shows the first valid rows of a file as tokens. `in_loss` says whether a token counts in the training loss.

A speculator learns from answers of the model, so only tokens of answers count in the loss. A row without an answer has
no such tokens yet, because the model writes the answer during the distillation.
"""

from typing import Any

from control.core.api.errors import ApiError
from control.core.storage.staging import staging_folder
from control.tenants.quotas.file_work import text_size_check
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.passes import first_rows
from control.workflows.datasets.reader import model_reader
from control.workflows.prompt_files.file_pass import file_pass

MAX_PREVIEW_TOKENS = 2_000  # per row


def dataset_preview(dataset: Dataset, *, limit: int) -> list[dict[str, Any]]:
    """Returns the first `limit` valid rows as tokens.

    Raises: ApiError: 400, the dataset has no model, or the model has no tokenizer on this machine; 404, the file is
        deleted.
    """
    readings: list[dict[str, Any]] | None = None
    text_size_check(dataset.file.size_bytes, "file_id")
    with staging_folder() as folder:
        path = folder / "rows"
        rows = file_pass(dataset.file, first_rows, param="file_id", path=str(path), limit=limit)["rows"]
        if dataset.base_model is not None:
            with model_reader(dataset.organization, dataset.base_model, num_shown=MAX_PREVIEW_TOKENS) as reader:
                reader.send(path)
                readings = reader.readings()
    if readings is None:
        message = "A preview shows tokens, so it needs a dataset with a `model` whose tokenizer is on this machine."
        raise ApiError(400, message, "tokenizer_not_available", "model")
    return [_row(row, reading) for row, reading in zip(rows, readings, strict=True)]


def _row(origin: dict[str, Any], reading: dict[str, Any]) -> dict[str, Any]:
    if reading["error"] is None:
        return {**origin, **reading}
    error = ApiError(400, reading["error"], "chat_template_error", "messages")
    return {**origin, "error": error.body()["error"], "tokens": []}
