"""Splits off the held-out prompts, on which a speculator is never trained. The split uses a hash, so it is repeatable.

    prompts ─┬─ lowest hashes of custom_id ──> held-out file
             └─ the rest ──> prompts file of the batch

In each of the two files, a blank line replaces every row that is in the other file. The line numbers in error messages
are therefore those of the customer's file.
"""

from dataclasses import dataclass
from pathlib import Path

from control.core.api.errors import ApiError
from control.core.storage.backends import get_storage
from control.core.storage.staging import measure, staging_folder
from control.core.storage.undo import register_stored
from control.data.files.models import File
from control.data.files.services import file_store
from control.models.catalog.models import BaseModel
from control.tenants.quotas.file_work import text_size_check
from control.workflows.prompt_files.file_pass import file_pass
from control.workflows.prompt_files.passes import choose_held_out, digest_prompts, divide, find_endpoint, normalise


def held_out_key(organization_id: str, pipeline_id: str) -> str:
    """Storage key of the normalised held-out rows, which workers read."""
    return f"{organization_id}/pipelines/{pipeline_id}/held_out.jsonl"


def split_prompts(file: File, *, held_out: int | None) -> tuple[File, File]:
    """Splits a prompts file. Returns the unsaved rows of two new files: the training prompts and the held-out prompts.

    A row is eligible to be held out if it is valid and no other row has its custom_id.

    Args:
        held_out: number of rows to hold out; None: a tenth of the rows, at least one.

    Raises: ApiError: 400, there are not enough rows for both files, or more than a batch can have; 413, the file is
        too large.
    """
    param = "prompts_file"
    text_size_check(file.size_bytes, param)
    with staging_folder() as folder:
        lines, rest, held = (folder / name for name in ("lines", "rest", "held_out"))
        chosen = file_pass(file, choose_held_out, param=param, held_out=held_out, path=str(lines))
        if chosen["num_rows"] <= chosen["count"]:
            message = f"{param} must have more than {chosen['count']} usable rows to hold {chosen['count']} out"
            raise ApiError(400, f"{message}, got {chosen['num_rows']}", "too_few_rows", param)
        paths = {"lines_path": str(lines), "rest_path": str(rest), "held_out_path": str(held)}
        file_pass(file, divide, param=param, **paths)
        made = [
            file_store(
                organization=file.organization,
                filename=f"{Path(file.filename).stem}.{part}.jsonl",
                purpose=File.Purpose.BATCH,
                staged=measure(path),
            )
            for part, path in (("prompts", rest), ("held-out", held))
        ]
    return made[0], made[1]


def endpoint_of(file: File, param: str = "prompts_file") -> str:
    """Returns the endpoint of most of the first rows; the endpoint of chat completions if no row is valid.

    A batch with this endpoint refuses rows for another one.

    Raises: ApiError: as `file_pass`; 400 also if the file is compressed or has too many blank lines.
    """
    return str(file_pass(file, find_endpoint, param=param)["endpoint"])


@dataclass(frozen=True, slots=True)
class HeldOut:
    num_rows: int  # stored rows
    num_duplicates: int  # rows that were left out because their prompt is a training prompt


def normalise_held_out(
    file: File,
    *,
    base_model: BaseModel,
    key: str,
    param: str = "held_out_file",
    training_prompts: File | None = None,
) -> HeldOut:
    """Stores the normalised rows for workers, without those whose prompt is also in `training_prompts`.

    Args:
        param: the request's parameter that named the file.

    Raises: ApiError: 400 for the first bad line, or because every prompt is a training prompt; 413, the file is too
        large.
    """
    endpoint = endpoint_of(file, param)
    with staging_folder() as folder:
        path, digests = folder / "rows.jsonl", folder / "digests"
        if training_prompts is not None:
            text_size_check(training_prompts.size_bytes, "prompts_file")
            file_pass(training_prompts, digest_prompts, param="prompts_file", path=str(digests))
        text_size_check(file.size_bytes, param)
        found = file_pass(
            file,
            normalise,
            param=param,
            endpoint=endpoint,
            model=base_model.name,
            path=str(path),
            digests_path=None if training_prompts is None else str(digests),
        )
        num_rows, num_duplicates = found["num_rows"], found["num_duplicates"]
        if found["error"] is not None:
            first = found["error"]
            position = "" if first["line"] is None else f" line {first['line']}:"
            message = f"{param}:{position} {first['message']} ({found['num_errors']} errors in all)"
            raise ApiError(400, message, first["code"], param)
        if num_duplicates == num_rows:
            message = f"{param}: all {num_duplicates} prompts are also in the training prompts, so none is held out"
            raise ApiError(400, message, "no_held_out_prompts", param)
        get_storage().put_file(key, path)
        register_stored(key)
    return HeldOut(num_rows - num_duplicates, num_duplicates)
