"""Creates and deletes datasets, and converts files in the dataset formats to prompts files."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from control.core.api.errors import ApiError
from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import staged_writer
from control.core.transactions import change
from control.data.files.models import File
from control.data.files.services import file_store
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited
from control.tenants.quotas.file_work import file_work, text_size_check
from control.workflows.datasets.formats import Example
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.reader import model_reader
from control.workflows.datasets.tokens import TokenCounter
from control.workflows.datasets.validation import Findings, examine
from control.workflows.prompt_files.lines import Line
from control.workflows.prompt_files.rows import Row, normalised_line

Status = Dataset.Status
OnExample = Callable[[Example, Line], object]


class _Tokens(NamedTuple):
    num: int | None  # None: not counted
    are_exact: bool


@audited("dataset.create", records_itself=True)
def dataset_create(*, organization: Organization, file: File, base_model: BaseModel | None = None) -> Dataset:
    """Reads the whole file within the request, so that the caller knows the file's errors before any cost arises.

    Bad rows are recorded in the dataset and raise no error.
    Args:
        base_model: the model whose tokenizer counts the tokens; None: tokens are not counted.
    Raises: ApiError: 404, the file is deleted; 400, tokenizing takes too long; 413, the file is too large; 429,
            too many files are being read.
    """
    if base_model is None:
        findings, tokens = file_examine(file, on_example=_ignore), _Tokens(None, True)
    else:
        findings, tokens = _examine_and_count(file, base_model)
    with change():
        dataset = Dataset.objects.create(
            organization=organization,
            file=file,
            base_model=base_model,
            format=findings.format or "",
            status=Status.INVALID if findings.num_errors else Status.VALID,
            num_rows=findings.num_rows,
            num_answers=findings.num_answers,
            num_tokens=tokens.num,
            tokens_are_exact=tokens.are_exact,
            errors=findings.errors,
            num_errors=findings.num_errors,
            errors_by_code=dict(findings.errors_by_code),
        )
        audit_record("dataset.create", dataset)
    return dataset


@audited("dataset.delete")
def dataset_delete(*, dataset: Dataset) -> None:
    """Deletes the dataset but not its file."""
    dataset.delete()


def _examine_and_count(file: File, base_model: BaseModel) -> tuple[Findings, _Tokens]:
    with model_reader(file.organization, base_model, num_shown=0) as reader:
        counter = TokenCounter(reader, size_bytes=file.size_bytes)
        findings = file_examine(file, on_example=counter.add)
        num = counter.total()
    return findings, _Tokens(num, num is None or counter.is_exact)


def file_examine(file: File, *, on_example: OnExample) -> Findings:
    """Checks all rows and calls `on_example` with every valid row.

    Raises: ApiError: 404, the file is deleted; 413, it is too large; 429, too many files are being read.
    """
    text_size_check(file.size_bytes, "file_id")
    try:
        source = get_storage().open(file.storage_key)
    except ObjectMissing as error:
        raise ApiError(404, f"The file {file.pk} has been deleted.", "file_not_found", "file_id") from error
    with closing(source), file_work.taken(file.organization_id):
        return examine(source, on_example=on_example)


def prompts_file_store(*, file: File, param: str) -> File:
    """Writes the file's prompts, without their answers, to a batch file, so that the model answers them itself.

    Returns: the unsaved row, as `file_store` does.

    Args:
        param: the request's parameter that named the file.
    Raises: ApiError: 400, a line is bad (the message names the first one); 404, the file is deleted.
    """
    with staged_writer() as writer:

        def write(example: Example, line: Line) -> None:
            custom_id = example.custom_id or f"row-{line.number}"
            row = Row(custom_id=custom_id, is_id_coerced=False, model="", body=dict(example.body))
            writer.write(normalised_line(row, url=example.endpoint, model=""))

        findings = file_examine(file, on_example=write)
        if findings.num_errors:
            raise _unusable(findings, param)
        return file_store(
            organization=file.organization,
            filename=f"{Path(file.filename).stem}.prompts.jsonl",
            purpose=File.Purpose.BATCH,
            staged=writer.finish(),
        )


def _unusable(findings: Findings, param: str) -> ApiError:
    first = findings.errors[0]
    position = "" if first["line"] is None else f"line {first['line']}: "
    more = f" ({findings.num_errors:,} bad lines in all)" if findings.num_errors > 1 else ""
    return ApiError(400, f"{param}: {position}{first['message']}{more}", first["code"], param)


def _ignore(example: Example, line: Line) -> None:
    pass
