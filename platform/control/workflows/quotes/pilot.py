"""A few rows, answered for real: how long answers are, the prompts themselves say least."""

import statistics
from math import ceil, sqrt

from control.core.storage.staging import StagedWriter, staged_writer
from control.data.files.models import File
from control.data.files.services import file_create
from control.workflows.batches.models import Batch
from control.workflows.batches.results import read_json_lines
from control.workflows.batches.services import batch_create
from control.workflows.datasets.formats import Example
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.services import file_examine
from control.workflows.prompt_files.lines import Line
from control.workflows.prompt_files.rows import Row, normalised_line

PILOT_ROWS = 16
Z = 2.0  # standard errors of the mean on either side: 95 of 100


class _Sample:
    """Every n-th row, so that a file that is sorted is seen from its beginning to its end."""

    def __init__(self, writer: StagedWriter, *, every: int) -> None:
        self.endpoint = ""
        self._writer = writer
        self._every = every
        self._num_seen = 0

    def see(self, example: Example, line: Line) -> None:
        self._num_seen += 1
        if (self._num_seen - 1) % self._every or example.endpoint != (self.endpoint or example.endpoint):
            return
        self.endpoint = example.endpoint
        row = Row(custom_id=f"row-{line.number}", is_id_coerced=False, model="", body=dict(example.body))
        self._writer.write(normalised_line(row, url=example.endpoint, model=""))


def pilot_start(dataset: Dataset, *, quote_id: str) -> Batch:
    """An ordinary batch of the organization, which pays for it. Raises: ApiError: 404, 429."""
    assert dataset.base_model is not None, "a quote is for a dataset with a model"
    with staged_writer() as writer:
        sample = _Sample(writer, every=ceil(dataset.num_rows / PILOT_ROWS))
        file_examine(dataset.file, see=sample.see)
        file = file_create(
            organization=dataset.organization,
            filename=f"{quote_id}.jsonl",
            purpose=File.Purpose.BATCH,
            source=writer.finish(),
        )
    return batch_create(
        organization=dataset.organization,
        input_file=file,
        endpoint=sample.endpoint,
        model=dataset.base_model.name,
        metadata={"quote": quote_id},
    )


def answer_lengths(pilot: Batch) -> list[int]:
    """In tokens."""
    return [len(row["completion_token_ids"]) for row in read_json_lines(pilot.tokens_key)]


def spread(lengths: list[int]) -> tuple[float, float, float]:
    """Mean of a row, and between which two it lies."""
    mean = statistics.fmean(lengths)
    if len(lengths) == 1:
        return mean, mean, mean
    error = Z * statistics.stdev(lengths) / sqrt(len(lengths))
    return mean, max(0.0, mean - error), mean + error
