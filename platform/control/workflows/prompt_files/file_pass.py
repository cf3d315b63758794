"""Runs passes (`child`) over the files that requests name, and turns failures into the API's errors."""

from contextlib import closing
from typing import Any, BinaryIO

import structlog

from control.core.api.errors import ApiError
from control.core.storage.backends import ObjectMissing, get_storage
from control.data.files.models import File
from control.tenants.quotas.file_work import file_work
from control.workflows.prompt_files.child import ChildDied, FileRefused, LimitExceeded, Pass, run_in_child

log = structlog.get_logger(__name__)

# A small file is read in this process. Even if each of its lines has only two bytes and is an error, reading takes no
# longer than starting a child process (40 ms).
SMALL_BYTES = 8 << 10
CPU_SECONDS = 60
MEMORY_BYTES = 192 << 20  # 50,000 ids of 256 characters, the costliest file that we know, take 100 MiB


def file_pass(file: File, one_pass: Pass, *, param: str, more_bytes: int = 0, **options: Any) -> dict[str, Any]:
    """Reads the file with a pass, in a child process unless the file is small.

    Args:
        param: the request's parameter that named the file.
        more_bytes: the size of another file with which the pass compares this one.

    Raises: ApiError: 400, the pass refuses the file, or takes too much time or memory; 404, the file is deleted; 429,
        too many files are being read; 503, the child process died.
    """
    with file_work.taken(file.organization_id), closing(_opened(file, param)) as source:
        try:
            if file.size_bytes + more_bytes <= SMALL_BYTES:
                return one_pass(source, **options)
            return run_in_child(source, one_pass, cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES, **options)
        except FileRefused as refusal:
            raise ApiError(400, f"{param} {refusal.message}", refusal.code, param) from refusal
        except LimitExceeded as error:
            message = f"{param}: reading the file takes more than {CPU_SECONDS} s or {MEMORY_BYTES >> 20} MiB of memory"
            raise ApiError(400, f"{message}. Split it into smaller files.", "file_too_complex", param) from error
        except ChildDied as error:
            log.error("reading a file failed", file_id=file.pk, cause=str(error))
            message = f"The file {file.pk} could not be read. Try again in a moment."
            raise ApiError(503, message, "file_not_read", param, headers={"Retry-After": "2"}) from error


def _opened(file: File, param: str) -> BinaryIO:
    """Opens the file's content. Raises: ApiError: 404, the customer has deleted the file since the request began."""
    try:
        return get_storage().open(file.storage_key)
    except ObjectMissing as error:
        raise ApiError(404, f"The file {file.pk} has been deleted.", "file_not_found", param) from error
