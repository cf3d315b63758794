"""Scans the files of requests for secrets and personal data, and applies the request's policy to what is found."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from control.core.api.errors import ApiError
from control.core.storage.staging import measure, staging_folder
from control.data.files.models import File
from control.data.files.services import file_store
from control.tenants.quotas.file_work import text_size_check
from control.workflows.prompt_files.file_pass import file_pass
from control.workflows.prompt_files.sensitive_passes import scan_rows

_MAX_SHOWN_KINDS = 5


class OnSensitive(StrEnum):
    WARN = "warn"  # the object has the report
    REDACT = "redact"  # a new file has placeholders in place of what is found
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Scanned:
    file: File  # the file to use: the unsaved row of a new file if something was redacted, else the scanned file
    report: dict[str, Any]  # see `sensitive_passes.scan_rows`, with `policy`, and the `original_file_id` of a new file

    @property
    def new_files(self) -> tuple[File, ...]:
        return () if self.report["original_file_id"] is None else (self.file,)


def file_scan(file: File, policy: OnSensitive, *, param: str) -> Scanned:
    """Scans a file of rows.

    Args:
        param: the request's parameter that named the file.

    Raises: ApiError: 400, the policy refuses the file, or a line cannot be redacted, because it cannot be read;
        413, the file is too large; or as `file_pass`.
    Effects: stores the new file; a caller's `delete_stored_on_error` deletes it.
    """
    text_size_check(file.size_bytes, param)
    with staging_folder() as folder:
        path = folder / "redacted" if policy == OnSensitive.REDACT else None
        report = file_pass(file, scan_rows, param=param, path=None if path is None else str(path))
        if report["num_found"] and policy == OnSensitive.REFUSE:
            raise _refusal(report, param)
        redacted = _stored(file, path) if path is not None and report["num_found"] else None
    original = None if redacted is None else file.pk
    return Scanned(redacted or file, {"policy": policy.value, "original_file_id": original, **report})


def _stored(original: File, path: Path) -> File:
    file = file_store(
        organization=original.organization,
        filename=f"{Path(original.filename).stem}.redacted.jsonl",
        purpose=original.purpose,
        staged=measure(path),
        made_from=original.pk,
    )
    file.project_id = original.project_id
    return file


def _refusal(report: dict[str, Any], param: str) -> ApiError:
    kinds = report["kinds"]
    first = kinds[:_MAX_SHOWN_KINDS]
    shown = ", ".join(f"{one['num_found']} {one['kind']} (first on line {one['lines'][0]})" for one in first)
    more = f" and {len(kinds) - len(first)} more kinds" if len(kinds) > len(first) else ""
    message = f"{param} has secrets or personal data in {report['num_rows']} rows: {shown}{more}"
    return ApiError(400, message, "sensitive_data", param)
