"""Copies the results of an ended batch into shards of the batch that resumes or repairs it.

The new shards count as committed and cost nothing. `choosing` decides which rows are answered again instead.

    output and tokens of the old batch ─┐
    its error file ─────────────────────┴─ by row number ─┬─ kept ──> one shard for each run of consecutive rows
                                                          └─ chosen ─> answered again
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import staged_writer
from control.queue.jobs.models import Job, JobShard
from control.workflows.batches.choosing import Choice, Rerun
from control.workflows.batches.models import Batch
from control.workflows.batches.results import json_line, read_json_lines, row_number
from control.workflows.batches.selectors import require_results, results_deleted


@dataclass(frozen=True, slots=True)
class Copied:
    shards: Sequence[JobShard]  # the shards of rows that keep their results; not numbered and not saved yet
    reruns: Mapping[int, Rerun]  # the rows that are answered again, by number


def results_copy(*, of: Batch, job: Job, choice: Choice) -> Copied:
    """Stores the results that `job` takes over from the batch.

    Two workers may copy the same batch at once: both store the same bytes under the same keys.
    Raises: ApiError: the results are deleted.
    """
    require_results(of)
    reruns: dict[int, Rerun] = {}
    try:
        runs = groupby(enumerate(_kept(of, choice, reruns)), key=lambda numbered: numbered[1]["row"] - numbered[0])
        shards = [_store(job, (entry for _, entry in run)) for _, run in runs]
    except ObjectMissing as error:  # the files were deleted meanwhile
        raise results_deleted(of) from error
    return Copied(shards, reruns)


def _kept(batch: Batch, choice: Choice, reruns: dict[int, Rerun]) -> Iterator[dict[str, Any]]:
    """Yields the results of rows that keep them, in the order of rows. Adds all other rows to `reruns`."""
    for entry in _results(batch):
        rerun = choice.rerun(entry)
        if rerun is None:
            yield entry
        else:
            reruns[entry["row"]] = rerun


def _results(batch: Batch) -> Iterator[dict[str, Any]]:
    """Yields the results of all rows in the order of rows, each in the form of an entry in a shard."""
    files = []
    if batch.output_file is not None:
        lines = zip(read_json_lines(batch.output_file.storage_key), read_json_lines(batch.tokens_key), strict=True)
        files.append({**tokens, **_entry(output, ok=True)} for output, tokens in lines)
    if batch.error_file is not None:
        lines_of_errors = read_json_lines(batch.error_file.storage_key)
        files.append(_entry(output, ok=False) for output in lines_of_errors)
    return heapq.merge(*files, key=itemgetter("row"))


def _entry(output: dict[str, Any], *, ok: bool) -> dict[str, Any]:
    return {"row": row_number(output), "custom_id": output["custom_id"], "ok": ok, "output": output}


def _store(job: Job, entries: Iterator[dict[str, Any]]) -> JobShard:
    """Stores the results as the file of one shard. Args: entries: of consecutive rows, at least one."""
    shard = JobShard(job=job)
    with staged_writer() as writer:
        for entry in entries:
            if shard.row_to is None:
                shard.row_from = shard.row_to = entry["row"]
            shard.row_to += 1
            shard.completed += entry["ok"]
            shard.failed += not entry["ok"]
            writer.write(json_line(entry))
        shard.storage_key = f"jobs/{job.pk}/shards/copied-{shard.row_from}.jsonl"
        get_storage().put_file(shard.storage_key, writer.finish().path)
    return shard
