"""Creates and deletes datasets, and converts files in the dataset formats to prompts files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.core.api.errors import ApiError
from control.core.storage.staging import measure, staging_folder
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.data.files.models import File
from control.data.files.services import file_add, file_store
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.tenants.accounts.versions import next_version
from control.tenants.audit.record import audit_record, audited
from control.tenants.quotas.file_work import file_work, text_size_check
from control.tenants.row_security.scope import current_project
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.passes import all_rows, labelled_rows, prompt_rows, sample_rows
from control.workflows.datasets.reader import model_reader
from control.workflows.datasets.tokens import sample_step, tokens_total
from control.workflows.datasets.validation import Findings
from control.workflows.prompt_files.child import Pass
from control.workflows.prompt_files.file_pass import file_pass
from control.workflows.prompt_files.sensitive import OnSensitive, file_scan

Status = Dataset.Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    findings: Findings
    duplicates: dict[str, Any]
    num_tokens: int | None = None  # None: not counted
    tokens_are_exact: bool = True


@audited("dataset.create", records_itself=True)
def dataset_create(
    *,
    organization: Organization,
    file: File,
    base_model: BaseModel | None = None,
    name: str = "",
    on_sensitive: OnSensitive | None = None,
) -> Dataset:
    """Reads the whole file within the request, so that the caller knows the file's errors before any cost arises.

    Bad rows are recorded in the dataset and raise no error.
    Args:
        base_model: the model whose tokenizer counts the tokens; None: tokens are not counted.
        name: the dataset becomes the next version of this name; empty: it has no name.
        on_sensitive: what happens to secrets and personal data; None: the file is not scanned.
    Raises: ApiError: 404, the file is deleted; 400, tokenizing takes too long, or as `file_scan`; 413, the file is too
            large; 429, too many files are being read.
    """
    with file_work.kept(organization.pk), delete_stored_on_error():
        scanned = None if on_sensitive is None else file_scan(file, on_sensitive, param="file_id")
        used = file if scanned is None else scanned.file
        examined = file_examined(used, base_model)
        with change():
            if used is not file:
                file_add(file=used)
            dataset = dataset_add(
                file=used,
                examined=examined,
                name=name,
                base_model=base_model,
                origin=None if used is file else {"file_id": file.pk, "on_sensitive": on_sensitive},
                sensitive=None if scanned is None else scanned.report,
            )
            audit_record("dataset.create", dataset)
    return dataset


def file_examined(file: File, base_model: BaseModel | None) -> Examined:
    """Raises: ApiError: as `dataset_create`."""
    return _examine(file) if base_model is None else _examine_and_count(file, base_model)


def dataset_add(
    *,
    file: File,
    examined: Examined,
    base_model: BaseModel | None,
    name: str = "",
    origin: Mapping[str, Any] | None = None,
    sensitive: Mapping[str, Any] | None = None,
) -> Dataset:
    """Saves the dataset of a file of the organization in the caller's transaction.

    Args:
        origin: what the file was made of, and how; the dataset then belongs to the project of the file.
        sensitive: the report of `file_scan`.
    """
    findings, datasets = examined.findings, Dataset.objects.filter(organization=file.organization)
    return Dataset.objects.create(
        organization=file.organization,
        name=name,
        version=next_version(file.organization, datasets.filter(name=name)) if name else None,
        file=file,
        base_model=base_model,
        format=findings.format or "",
        status=Status.INVALID if findings.num_errors else Status.VALID,
        num_rows=findings.num_rows,
        num_answers=findings.num_answers,
        num_tokens=examined.num_tokens,
        tokens_are_exact=examined.tokens_are_exact,
        duplicates=examined.duplicates,
        errors=findings.errors,
        num_errors=findings.num_errors,
        errors_by_code=dict(findings.errors_by_code),
        origin=origin,
        sensitive=sensitive,
        project_id=current_project() if origin is None else file.project_id,
    )


@audited("dataset.delete")
def dataset_delete(*, dataset: Dataset) -> None:
    """Deletes the dataset but not its file."""
    dataset.delete()


def _examine(file: File) -> Examined:
    findings, more = file_examine(file, all_rows)
    return Examined(findings=findings, duplicates=more["duplicates"])


def _examine_and_count(file: File, base_model: BaseModel) -> Examined:
    with model_reader(file.organization, base_model, num_shown=0) as reader, staging_folder() as folder:
        every, path = sample_step(file.size_bytes), folder / "rows"
        findings, more = file_examine(file, sample_rows, path=str(path), every=every)
        reader.send(path)
        num = tokens_total(reader, every=every, num_bytes=more["num_bytes"])
    return Examined(
        findings=findings,
        duplicates=more["duplicates"],
        num_tokens=num,
        tokens_are_exact=num is None or every == 1,
    )


def file_examine(file: File, one_pass: Pass, **options: Any) -> tuple[Findings, dict[str, Any]]:
    """Checks the rows with a pass of `passes`. Returns: the findings, and the other members of the pass's result.

    Raises: ApiError: as `file_pass`; 413, the file is too large.
    """
    text_size_check(file.size_bytes, "file_id")
    more = file_pass(file, one_pass, param="file_id", **options)
    return Findings.of(more.pop("findings")), more


def prompts_file_store(*, file: File, param: str) -> File:
    """Writes the file's prompts, without their answers, to a batch file, so that the model answers them itself.

    Returns: the unsaved row, as `file_store` does.

    Args:
        param: the request's parameter that named the file.
    Raises: ApiError: 400, a line is bad (the message names the first one); 404, the file is deleted.
    """
    with staging_folder() as folder:
        path = folder / "prompts"
        findings, _ = file_examine(file, prompt_rows, path=str(path))
        if findings.num_errors:
            raise _unusable(findings, param)
        return file_store(
            organization=file.organization,
            filename=f"{Path(file.filename).stem}.prompts.jsonl",
            purpose=File.Purpose.BATCH,
            staged=measure(path),
            made_from=file.pk,
        )


def labels_check(*, file: File, param: str) -> None:
    """Checks that every row of the file is a chat with a label.

    Args: param: the request's parameter that named the file.
    Raises: ApiError: as `prompts_file_store`.
    """
    findings, _ = file_examine(file, labelled_rows)
    if findings.num_errors:
        raise _unusable(findings, param)


def _unusable(findings: Findings, param: str) -> ApiError:
    first = findings.errors[0]
    position = "" if first["line"] is None else f"line {first['line']}: "
    more = f" ({findings.num_errors:,} bad lines in all)" if findings.num_errors > 1 else ""
    return ApiError(400, f"{param}: {position}{first['message']}{more}", first["code"], param)
