"""Converts files of prompts with answers that were made elsewhere: logs of chats, or requests with their responses."""

from pathlib import Path

from control.core.api.errors import ApiError
from control.core.storage.staging import measure, staging_folder
from control.data.files.models import File
from control.data.files.services import file_store
from control.tenants.quotas.file_work import text_size_check
from control.workflows.datasets.answer_passes import answered_rows
from control.workflows.prompt_files.file_pass import file_pass

_PURPOSES = (File.Purpose.FINE_TUNE, File.Purpose.BATCH)


def answers_file_check(file: File) -> File:
    """Raises: ApiError: 400, the file cannot have prompts with answers."""
    if file.purpose not in _PURPOSES:
        message = f"prompts_file must name a file with purpose 'fine-tune' or 'batch', got {file.purpose!r}"
        raise ApiError(400, message, "invalid_value", "prompts_file")
    return file


def answers_file_store(*, file: File, param: str) -> File:
    """Writes the rows as batch rows with a member `answer`, one for each line of the file. Returns: the unsaved row.

    Args: param: the request's parameter that named the file.
    Raises: ApiError: 400, a line is bad or has no answer (the message names the first one); or as `file_pass`.
    """
    text_size_check(file.size_bytes, param)
    with staging_folder() as folder:
        path = folder / "answers"
        file_pass(file, answered_rows, param=param, path=str(path))
        stored = file_store(
            organization=file.organization,
            filename=f"{Path(file.filename).stem}.answers.jsonl",
            purpose=File.Purpose.BATCH,
            staged=measure(path),
            made_from=file.pk,
        )
    stored.project_id = file.project_id
    return stored
