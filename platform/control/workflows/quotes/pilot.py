"""The pilot of a quote: the model answers a few rows, because prompts do not reveal how long their answers will be."""

import statistics
from dataclasses import dataclass
from math import ceil, sqrt

from control.core.storage.staging import measure, staging_folder
from control.data.files.models import File
from control.data.files.services import file_add, file_store
from control.workflows.batches.models import Batch
from control.workflows.batches.results import read_json_lines
from control.workflows.batches.services import batch_create
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.passes import pilot_rows
from control.workflows.datasets.services import file_examine

PILOT_ROWS = 16  # number of rows, taken from all parts of the file because the file may be sorted
Z = 2.0  # the confidence interval is the mean ± Z standard errors, for a confidence of about 95 %


@dataclass(frozen=True, slots=True)
class PilotRows:
    file: File  # its content is in the storage, but the database does not have it yet
    endpoint: str


def pilot_rows_store(dataset: Dataset, *, quote_id: str) -> PilotRows:
    """Stores the pilot's input. Raises: ApiError: 404, the dataset's file is deleted."""
    with staging_folder() as folder:
        path = folder / "rows"
        every = ceil(dataset.num_rows / PILOT_ROWS)
        _, more = file_examine(dataset.file, pilot_rows, path=str(path), every=every)
        file = file_store(
            organization=dataset.organization,
            filename=f"{quote_id}.jsonl",
            purpose=File.Purpose.BATCH,
            staged=measure(path),
        )
    return PilotRows(file, more["endpoint"])


def pilot_start(dataset: Dataset, rows: PilotRows, *, quote_id: str, hardware: str = "") -> Batch:
    """Starts the pilot as an ordinary batch, for which the organization pays. Raises: ApiError: 429, a quota."""
    assert dataset.base_model is not None, "a quote is for a dataset with a model"
    return batch_create(
        organization=dataset.organization,
        input_file=file_add(file=rows.file),
        endpoint=rows.endpoint,
        model=dataset.base_model.name,
        metadata={"quote": quote_id},
        hardware=hardware,
    )


def answer_lengths(pilot: Batch) -> list[int]:
    """Lengths of the pilot's answers, in tokens."""
    return [len(row["completion_token_ids"]) for row in read_json_lines(pilot.tokens_key)]


def mean_with_bounds(lengths: list[int]) -> tuple[float, float, float]:
    """Mean length of an answer, and the lower and upper bound of its confidence interval."""
    mean = statistics.fmean(lengths)
    if len(lengths) == 1:
        return mean, mean, mean
    half_width = Z * statistics.stdev(lengths) / sqrt(len(lengths))
    return mean, max(0.0, mean - half_width), mean + half_width
