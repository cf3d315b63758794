"""The pilot of a quote: the model answers a few rows, because prompts do not reveal how long their answers will be."""

import statistics
from dataclasses import dataclass
from math import ceil, sqrt

from control.core.storage.staging import StagedWriter, staged_writer
from control.data.files.models import File
from control.data.files.services import file_add, file_store
from control.workflows.batches.models import Batch
from control.workflows.batches.results import read_json_lines
from control.workflows.batches.services import batch_create
from control.workflows.datasets.formats import Example
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.services import file_examine
from control.workflows.prompt_files.lines import Line
from control.workflows.prompt_files.rows import Row, normalised_line

PILOT_ROWS = 16
Z = 2.0  # half the width of the confidence interval, in standard errors of the mean: about 95 % confidence


class _Sample:
    """Writes every n-th row to the pilot's input file, so that the pilot samples all parts of a sorted file."""

    def __init__(self, writer: StagedWriter, *, every: int) -> None:
        self.endpoint = ""
        self._writer = writer
        self._every = every
        self._num_seen = 0

    def add(self, example: Example, line: Line) -> None:
        self._num_seen += 1
        # Rows for another endpoint than the first row's are skipped, because a batch has only one endpoint.
        if (self._num_seen - 1) % self._every or example.endpoint != (self.endpoint or example.endpoint):
            return
        self.endpoint = example.endpoint
        row = Row(custom_id=f"row-{line.number}", is_id_coerced=False, model="", body=dict(example.body))
        self._writer.write(normalised_line(row, url=example.endpoint, model=""))


@dataclass(frozen=True, slots=True)
class PilotRows:
    file: File  # stored, but its row is not saved
    endpoint: str


def pilot_rows_store(dataset: Dataset, *, quote_id: str) -> PilotRows:
    """Stores the pilot's input. Raises: ApiError: 404, the dataset's file is deleted."""
    with staged_writer() as writer:
        sample = _Sample(writer, every=ceil(dataset.num_rows / PILOT_ROWS))
        file_examine(dataset.file, on_example=sample.add)
        file = file_store(
            organization=dataset.organization,
            filename=f"{quote_id}.jsonl",
            purpose=File.Purpose.BATCH,
            staged=writer.finish(),
        )
    return PilotRows(file, sample.endpoint)


def pilot_start(dataset: Dataset, rows: PilotRows, *, quote_id: str) -> Batch:
    """Starts the pilot as an ordinary batch, for which the organization pays. Raises: ApiError: 429, a quota."""
    assert dataset.base_model is not None, "a quote is for a dataset with a model"
    return batch_create(
        organization=dataset.organization,
        input_file=file_add(file=rows.file),
        endpoint=rows.endpoint,
        model=dataset.base_model.name,
        metadata={"quote": quote_id},
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
