"""Reads the first results of a batch, which the console shows."""

import json
from dataclasses import dataclass
from typing import Any

from control.core.api.errors import ApiError
from control.core.storage.backends import ObjectMissing
from control.workflows.batches.models import Batch
from control.workflows.batches.reading import ResultsReader
from control.workflows.batches.results import error_of, read_json_lines

MAX_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class RowSample:
    custom_id: str
    text: str  # the beginning of the answer, or the message of the error
    code: str = ""  # the error's code; empty: the row was answered


def first_results(batch: Batch, count: int) -> list[RowSample] | None:
    """Returns the first finished rows in input order, also while the batch runs. None: the results are deleted."""
    lines: list[bytes] = []
    try:
        reader = ResultsReader(batch, after=0)
        while len(lines) < count and (chunk := reader.read()):
            lines += chunk.splitlines()
    except ApiError:
        return None
    return [_sample(json.loads(line)) for line in lines[:count]]


def first_errors(batch: Batch, count: int) -> list[RowSample]:
    """Returns the first lines of the error file. A batch that has not ended has none."""
    file = batch.error_file
    if file is None or file.deleted_at is not None:
        return []
    try:
        return [_sample(line) for line, _ in zip(read_json_lines(file.storage_key), range(count), strict=False)]
    except ObjectMissing:
        return []


def _sample(output: dict[str, Any]) -> RowSample:
    error = error_of(output)
    if error is not None:
        code, message = error
        return RowSample(output["custom_id"], message[:MAX_CHARACTERS], code)
    return RowSample(output["custom_id"], _answer(output["response"]["body"])[:MAX_CHARACTERS])


def _answer(body: dict[str, Any]) -> str:
    """Returns the answer's text, or its JSON if it has no text, for example if it only calls tools."""
    for choice in body.get("choices", ()):
        text = choice.get("text") or (choice.get("message") or {}).get("content")
        if isinstance(text, str) and text:
            return text
    return json.dumps(body.get("choices", body), ensure_ascii=False)
