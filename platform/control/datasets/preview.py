"""The first good rows of a file as the model reads them, and where the loss falls.

A speculator learns from what the model itself said: loss falls on the answer's tokens and on no others. A row without
an answer has none to show yet: the model writes it when the row is distilled.
"""

from contextlib import suppress
from typing import Any

from control.api.errors import ApiError
from control.batches.lines import Line
from control.datasets.formats import Example
from control.datasets.models import Dataset
from control.datasets.rendering import Renderer, renderer_of
from control.datasets.services import file_examine
from control.files.models import File

MAX_PREVIEW_TOKENS = 2_000  # of one row


class _Enough(Exception):
    """The rows asked for have been seen: the rest of the file need not be read."""


def dataset_preview(dataset: Dataset, *, limit: int) -> list[dict[str, Any]]:
    """Raises: ApiError: 400, the dataset names no model, or one whose tokenizer is not here; 404, the file is gone."""
    renderer = None if dataset.base_model is None else renderer_of(dataset.base_model)
    if renderer is None:
        message = "A preview shows tokens: it needs a dataset with a `model`, whose tokenizer lies on this machine."
        raise ApiError(400, message, "tokenizer_not_available", "model")
    return [_row(renderer, example, number) for number, example in _first(dataset.file, limit)]


def _first(file: File, limit: int) -> list[tuple[int, Example]]:
    rows: list[tuple[int, Example]] = []

    def see(example: Example, line: Line) -> None:
        rows.append((line.number, example))
        if len(rows) == limit:
            raise _Enough

    with suppress(_Enough):
        file_examine(file, see=see)
    return rows


def _row(renderer: Renderer, example: Example, number: int) -> dict[str, Any]:
    try:
        rendered = renderer.render(example)
    except ApiError as error:
        return {"line": number, "custom_id": example.custom_id, "error": error.body()["error"], "tokens": []}
    prompt, answer = renderer.encode(rendered)
    parts = ((rendered.prompt, prompt, False), (rendered.answer, answer, True))
    tokens = [
        {"id": token, "text": text[begin:end], "in_loss": is_answer}
        for text, encoding, is_answer in parts
        for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True)
    ]
    return {
        "line": number,
        "custom_id": example.custom_id,
        "error": None,
        "num_tokens": len(tokens),
        "num_loss_tokens": len(answer.ids),
        "tokens": tokens[:MAX_PREVIEW_TOKENS],
    }

