"""Services that write uploads. They store bytes first and then create the row.

pending ──> completed | cancelled | expired
"""

import datetime as dt
import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from control.core.api.errors import ApiError
from control.core.ids import upload_part_id
from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import CHUNK_BYTES, StagedFile, StagedWriter, staged_writer
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.data.files.models import File
from control.data.files.services import file_add, file_store
from control.data.uploads.models import Upload, UploadPart
from control.data.uploads.selectors import is_open, parts_list, uploads_overdue, uploads_untidy
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited
from control.tenants.quotas.file_work import file_work
from control.tenants.quotas.models import StoredPart
from control.tenants.quotas.storage import reservation_commit, storage_check, storage_count, storage_reserve

Status = Upload.Status

MAX_UPLOAD_BYTES = 8 << 30  # as in OpenAI's API; `upload_complete` copies the parts within the request
MAX_PART_BYTES = 64 * 1024 * 1024
LIFETIME = dt.timedelta(hours=1)
# All parts together may be larger than the file, because a client that lost a response sends the part again, and the
# service stores the repeated part under a new id.
MAX_PARTS_RATIO = 2
PURGE_LIMIT = 100


@audited("upload.create")
def upload_create(
    *,
    organization: Organization,
    filename: str,
    purpose: str,
    mime_type: str,
    size_bytes: int,
    file_expires_after: dt.timedelta | None = None,
) -> Upload:
    """Creates an upload without parts.

    Raises: ApiError: 403, the file would exceed the storage limit, which is checked again for each part; 413, the file
        would be too large.
    """
    if size_bytes > MAX_UPLOAD_BYTES:
        message = f"bytes must be at most {MAX_UPLOAD_BYTES:,}, got {size_bytes:,}"
        raise ApiError(413, message, "file_too_large", "bytes")
    storage_check(organization.pk, num_bytes=size_bytes)
    return Upload.objects.create(
        organization=organization,
        filename=filename,
        purpose=File.Purpose(purpose),
        mime_type=mime_type,
        size_bytes=size_bytes,
        file_expires_after=file_expires_after,
        expires_at=timezone.now() + LIFETIME,
    )


@audited("upload.add_part", records_itself=True)
def part_add(*, upload: Upload, staged: StagedFile) -> UploadPart:
    """Stores a part and adds its row.

    Raises: ApiError: 400, the upload has ended, or its parts would be too large in total; 403, the organization would
        exceed its storage limit.
    """
    identity = upload_part_id()
    key = f"{upload.organization_id}/uploads/{upload.pk}/{identity}"
    with delete_stored_on_error():
        storage_reserve(upload.organization_id, StoredPart.UPLOADS, key=key, num_bytes=staged.size_bytes)
        get_storage().put_file(key, staged.path)
        with change():
            _lock_open(upload)
            total = _parts_bytes(upload) + staged.size_bytes
            if total > MAX_PARTS_RATIO * upload.size_bytes:
                message = f"The parts would have {total:,} bytes; the file has {upload.size_bytes:,}."
                raise ApiError(400, message, "upload_too_large", "data")
            part = UploadPart.objects.create(id=identity, upload=upload, size_bytes=staged.size_bytes, storage_key=key)
            reservation_commit(key)
            audit_record("upload.add_part", part)
    return part


@audited("upload.complete", records_itself=True)
def upload_complete(*, upload: Upload, part_ids: Sequence[str], md5: str | None = None) -> Upload:
    """Creates the file from these parts in this order. Deletes all parts of the upload.

    Raises: ApiError: 400, the upload has ended, or the parts do not have the announced size or checksum.
    """
    if not Upload.objects.filter(is_open(), pk=upload.pk).exists():
        raise _ended_error(upload)
    parts = _parts_in_order(upload, part_ids)
    with file_work.taken(upload.organization_id), staged_writer() as writer:
        staged = _concatenate(parts, writer, md5)
        with delete_stored_on_error():
            file = file_store(
                organization=upload.organization,
                filename=upload.filename,
                purpose=upload.purpose,
                staged=staged,
                expires_after=upload.file_expires_after,
                replacing_bytes=_parts_bytes(upload),
            )
            with change():
                _lock_open(upload)
                _end(upload, Status.COMPLETED, file=file_add(file=file))
                audit_record("upload.complete", upload)
    upload.refresh_from_db()
    return upload


@audited("upload.cancel")
def upload_cancel(*, upload: Upload) -> Upload:
    """Raises: ApiError: 400, the upload has ended."""
    with transaction.atomic():
        _lock_open(upload)
        _end(upload, Status.CANCELLED)
    upload.refresh_from_db()
    return upload


def uploads_expire() -> int:
    """Expires overdue uploads and deletes the parts of ended uploads. Returns: the number of expired uploads."""
    num_expired = uploads_overdue().update(status=Status.EXPIRED)
    for upload in uploads_untidy()[:PURGE_LIMIT]:
        _delete_parts(upload.pk)
    return num_expired


def _lock_open(upload: Upload) -> None:
    """Locks the upload until the transaction ends. Raises: ApiError: 400, the upload has ended."""
    if not Upload.objects.filter(is_open(), pk=upload.pk).update(status=Status.PENDING):
        raise _ended_error(upload)


def _parts_bytes(upload: Upload) -> int:
    return parts_list(upload).aggregate(total=Sum("size_bytes"))["total"] or 0


def _end(upload: Upload, to: Upload.Status, **values: Any) -> None:
    Upload.objects.filter(pk=upload.pk).update(status=to, **values)
    transaction.on_commit(partial(_delete_parts, upload.pk))


def _ended_error(upload: Upload) -> ApiError:
    upload.refresh_from_db()
    status = Status.EXPIRED if upload.status == Status.PENDING else upload.status
    return ApiError(400, f"Upload {upload.pk} is {status}.", "invalid_upload_status", "upload_id")


def _parts_in_order(upload: Upload, part_ids: Sequence[str]) -> list[UploadPart]:
    if len(set(part_ids)) < len(part_ids):
        raise ApiError(400, "part_ids names a part twice.", "invalid_value", "part_ids")
    by_id = {part.pk: part for part in parts_list(upload)}
    if missing := next((part_id for part_id in part_ids if part_id not in by_id), None):
        message = f"Upload {upload.pk} has no part {missing[:80]!r}."
        raise ApiError(400, message, "upload_part_not_found", "part_ids")
    parts = [by_id[part_id] for part_id in part_ids]
    if (total := sum(part.size_bytes for part in parts)) != upload.size_bytes:
        message = f"The parts have {total:,} bytes, but {upload.size_bytes:,} were announced."
        raise ApiError(400, message, "upload_size_mismatch", "part_ids")
    return parts


def _concatenate(parts: Sequence[UploadPart], writer: StagedWriter, md5: str | None) -> StagedFile:
    digest = hashlib.md5(usedforsecurity=False)
    for part in parts:
        try:
            source = get_storage().open(part.storage_key)
        except ObjectMissing as error:  # another request has completed or cancelled the upload meanwhile
            raise _ended_error(part.upload) from error
        with source:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                writer.write(chunk)
    if md5 is not None and digest.hexdigest() != md5.lower():
        raise ApiError(400, f"md5 must be {digest.hexdigest()}, got {md5[:80]!r}", "md5_mismatch", "md5")
    return writer.finish()


def _delete_parts(upload_id: str) -> None:
    """Deletes bytes before rows: if the process dies in between, the next run finds the rows."""
    for part in UploadPart.objects.filter(upload_id=upload_id).select_related("upload"):
        get_storage().delete(part.storage_key)
        with transaction.atomic():
            if UploadPart.objects.filter(pk=part.pk).delete()[0]:
                storage_count(part.upload.organization_id, StoredPart.UPLOADS, -part.size_bytes)
    Upload.objects.filter(pk=upload_id).update(has_parts=False)
