"""Services that write files. They store the bytes first and then create the row."""

import datetime as dt
from functools import partial
from pathlib import Path
from typing import BinaryIO

from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from control.core.ids import file_id
from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.core.storage.staging import StagedFile, copy_stream, measure, staged_writer
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.data.files.models import File
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.tenants.quotas.models import StoredPart
from control.tenants.quotas.storage import reservation_commit, storage_count, storage_reserve

EXPIRE_LIMIT = 100


def file_create(
    *,
    organization: Organization,
    filename: str,
    purpose: str,
    source: BinaryIO | Path | StagedFile,
    expires_after: dt.timedelta | None = None,
) -> File:
    """Stores the bytes and creates the row. A stream is read in chunks, so a file of any size takes little memory.

    Raises: ApiError: 413, a stream exceeds the upload limit (paths have no limit, because they do not come from
        customers); 403, the organization would exceed its storage limit.
    Effects: if the row cannot be written, the bytes are deleted again.
    """
    if isinstance(source, StagedFile):
        staged = source
    elif isinstance(source, Path):
        staged = measure(source)
    else:
        with staged_writer(limit_bytes=get_config().max_upload_bytes) as writer:
            return file_create(
                organization=organization,
                filename=filename,
                purpose=purpose,
                source=copy_stream(source, writer),
                expires_after=expires_after,
            )
    with delete_stored_on_error():
        file = file_store(
            organization=organization, filename=filename, purpose=purpose, staged=staged, expires_after=expires_after
        )
        with change():
            return file_add(file=file)


def file_store(
    *,
    organization: Organization,
    filename: str,
    purpose: str,
    staged: StagedFile,
    expires_after: dt.timedelta | None = None,
    replacing_bytes: int = 0,
    made_from: str = "",
) -> File:
    """Stores the bytes and returns the row unsaved, for `file_add`. Call this before the transaction begins.

    Args:
        replacing_bytes: the size of upload parts that are deleted when the file is added; the quota ignores them.
        made_from: see `File.made_from`.
    Raises: ApiError: 403, as `file_create`.
    Effects: if an exception leaves the surrounding `delete_stored_on_error` block, the bytes are deleted.
    """
    identity = file_id()
    file = _row(organization, filename, purpose, staged, f"{organization.pk}/files/{identity}", expires_after, identity)
    file.made_from = made_from
    storage_reserve(
        organization.pk,
        StoredPart.FILES,
        key=file.storage_key,
        num_bytes=staged.size_bytes,
        replacing=replacing_bytes,
    )
    get_storage().put_file(file.storage_key, staged.path)
    return file


@audited("file.create")
def file_add(*, file: File) -> File:
    """Saves a row that `file_store` returned, in the caller's transaction."""
    reservation_commit(file.storage_key)
    file.save(force_insert=True)
    return file


@audited("file.create")
def file_record(
    *,
    organization: Organization,
    filename: str,
    purpose: str,
    staged: StagedFile,
    storage_key: str,
    expires_after: dt.timedelta | None = None,
) -> File:
    """Creates, in the caller's transaction, the row of a result file whose bytes the caller has already stored.

    The bytes count towards the storage quota. The row is created even if they exceed it, because the job has already
    run.
    """
    file = _row(organization, filename, purpose, staged, storage_key, expires_after, file_id())
    file.save(force_insert=True)
    storage_count(organization.pk, StoredPart.FILES, file.size_bytes)
    return file


def _row(
    organization: Organization,
    filename: str,
    purpose: str,
    staged: StagedFile,
    storage_key: str,
    expires_after: dt.timedelta | None,
    identity: str,
) -> File:
    """Returns an unsaved row."""
    return File(
        id=identity,
        organization=organization,
        filename=filename,
        purpose=File.Purpose(purpose),
        size_bytes=staged.size_bytes,
        sha256=staged.sha256,
        storage_key=storage_key,
        expires_at=None if expires_after is None else timezone.now() + expires_after,
    )


@audited("file.delete")
@transaction.atomic
def file_delete(*, file: File) -> None:
    """Marks the row as deleted and deletes the bytes after the commit. The row stays, because batches refer to it."""
    if File.objects.filter(pk=file.pk, deleted_at=None).update(deleted_at=timezone.now()):
        storage_count(file.organization_id, StoredPart.FILES, -file.size_bytes)
        transaction.on_commit(partial(get_storage().delete, file.storage_key))


def files_expire() -> int:
    """Deletes expired files. Several processes may run it at once. Returns: the number of expired files."""
    due = list(File.objects.filter(deleted_at=None, expires_at__lte=Now()).order_by("expires_at")[:EXPIRE_LIMIT])
    for file in due:
        file_delete(file=file)
    return len(due)
