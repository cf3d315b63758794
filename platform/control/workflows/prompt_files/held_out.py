"""Splits off the held-out prompts, on which a speculator is never trained. The split uses a hash, so it is repeatable.

    prompts ─┬─ lowest hashes of custom_id ──> held-out file
             └─ the rest ──> prompts file of the batch

In each of the two files, a blank line replaces every row that is in the other file. Line numbers in error messages
therefore refer to the customer's file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.core.api.errors import ApiError
from control.core.storage.backends import get_storage
from control.core.storage.staging import measure, staging_folder
from control.core.storage.undo import register_stored
from control.data.files.models import File
from control.data.files.services import file_store
from control.models.catalog.models import BaseModel
from control.tenants.quotas.file_work import text_size_check
from control.workflows.prompt_files.contamination import (
    TRAINING_PARAM,
    OnContamination,
    apply_policy,
    compare_files,
    compare_parts,
)
from control.workflows.prompt_files.file_pass import file_pass
from control.workflows.prompt_files.passes import choose_held_out, divide, find_endpoint, normalise, without_lines


def held_out_key(organization_id: str, pipeline_id: str) -> str:
    """Storage key of the normalised held-out rows, which workers read."""
    return f"{organization_id}/pipelines/{pipeline_id}/held_out.jsonl"


@dataclass(frozen=True, slots=True)
class Split:
    prompts: File  # unsaved row
    held_out: File  # unsaved row
    contamination: dict[str, Any]  # see `apply_policy`


def split_prompts(
    file: File, *, held_out: int | None, on_contamination: OnContamination = OnContamination.WARN
) -> Split:
    """Splits a prompts file into the training prompts and the held-out prompts.

    A row is eligible to be held out if it is valid and no other row has its custom_id.

    Args:
        held_out: number of rows to hold out; None: a tenth of the rows, at least one.
        on_contamination: what happens to training prompts that are like held-out prompts.

    Raises: ApiError: 400, there are not enough rows for both files, or more than a batch can have, or the policy
        refuses the rows; 413, the file is too large.
    """
    param = "prompts_file"
    text_size_check(file.size_bytes, param)
    with staging_folder() as folder:
        lines, rest, held = (folder / name for name in ("lines", "rest", "held_out"))
        chosen = file_pass(file, choose_held_out, param=param, held_out=held_out, path=str(lines))
        if chosen["num_rows"] <= chosen["count"]:
            message = f"{param} must have more than {chosen['count']} usable rows to hold {chosen['count']} out"
            raise ApiError(400, f"{message}, got {chosen['num_rows']}", "too_few_rows", param)
        compared = compare_parts(file, held_out_lines=str(lines), folder=folder)
        contamination = apply_policy(compared, on_contamination, param=param)
        file_pass(
            file,
            divide,
            param=param,
            lines_path=str(lines),
            rest_path=str(rest),
            held_out_path=str(held),
            dropped_path=compared.lines_path if contamination["num_dropped"] else None,
        )
        return Split(_stored(file, "prompts", rest), _stored(file, "held-out", held), contamination)


def _stored(original: File, part: str, path: Path) -> File:
    """Stores a part of a file as a file of batch rows. Returns the unsaved row, as `file_store` does."""
    return file_store(
        organization=original.organization,
        filename=f"{Path(original.filename).stem}.{part}.jsonl",
        purpose=File.Purpose.BATCH,
        staged=measure(path),
        made_from=original.pk,
    )


def endpoint_of(file: File, param: str = "prompts_file") -> str:
    """Returns the endpoint of most of the first rows; the endpoint of chat completions if no row is valid.

    A batch with this endpoint refuses rows for other endpoints.

    Raises: ApiError: as `file_pass`; 400 also if the file is compressed or has too many blank lines.
    """
    return str(file_pass(file, find_endpoint, param=param)["endpoint"])


@dataclass(frozen=True, slots=True)
class HeldOut:
    num_rows: int  # stored rows
    num_duplicates: int = 0  # rows that were left out because their prompt is a training prompt
    contamination: dict[str, Any] | None = None  # see `apply_policy`; None: there were no training prompts
    cleaned_prompts: File | None = None  # unsaved row of the remaining training prompts, if any were dropped


def normalise_held_out(
    file: File,
    *,
    base_model: BaseModel,
    key: str,
    param: str = "held_out_file",
    training_prompts: File | None = None,
    on_contamination: OnContamination = OnContamination.WARN,
) -> HeldOut:
    """Stores the normalised rows for workers, without those whose prompt is also in `training_prompts`.

    If the policy is to drop training prompts, all rows are stored, and similar training prompts are left out of
    `cleaned_prompts`.

    Args:
        param: the request's parameter that named the file.

    Raises: ApiError: 400, a line is bad (the message names the first one), every prompt of the file is a training
        prompt, or the policy refuses the prompts; 413, the file is too large.
    """
    endpoint = endpoint_of(file, param)
    with staging_folder() as folder:
        path, digests, cleaned, contamination = folder / "rows.jsonl", None, None, None
        if training_prompts is not None:
            compared = compare_files(training_prompts, file, folder=folder, param=param)
            contamination = apply_policy(compared, on_contamination, param=param)
            digests = None if on_contamination == OnContamination.DROP else compared.digests_path
            if contamination["num_dropped"]:
                cleaned = _without(training_prompts, compared.lines_path, folder / "cleaned")
        text_size_check(file.size_bytes, param)
        found = file_pass(
            file,
            normalise,
            param=param,
            endpoint=endpoint,
            model=base_model.name,
            path=str(path),
            digests_path=digests,
        )
        _check_normalised(found, param)
        get_storage().put_file(key, path)
        register_stored(key)
    return HeldOut(found["num_rows"] - found["num_duplicates"], found["num_duplicates"], contamination, cleaned)


def _without(training_prompts: File, lines_path: str, path: Path) -> File:
    file_pass(training_prompts, without_lines, param=TRAINING_PARAM, lines_path=lines_path, path=str(path))
    return _stored(training_prompts, "cleaned", path)


def _check_normalised(found: Mapping[str, Any], param: str) -> None:
    """Raises: ApiError: 400, a line is bad, or no row is left."""
    if found["error"] is not None:
        first = found["error"]
        position = "" if first["line"] is None else f" line {first['line']}:"
        message = f"{param}:{position} {first['message']} ({found['num_errors']} errors in all)"
        raise ApiError(400, message, first["code"], param)
    num_duplicates = found["num_duplicates"]
    if num_duplicates == found["num_rows"]:
        message = f"{param}: all {num_duplicates} prompts are also in the training prompts, so none is held out"
        raise ApiError(400, message, "no_held_out_prompts", param)
