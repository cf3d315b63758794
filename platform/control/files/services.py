"""Writers of files: bytes go to storage first, then the row says that they are there."""

import datetime as dt
import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import structlog
from django.db import transaction
from django.utils import timezone

from control.accounts.models import Organization
from control.api.errors import ApiError
from control.files.models import File
from control.ids import file_id
from control.settings.config import get_config
from control.storage import get_storage

log = structlog.get_logger(__name__)
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Bytes on this machine's disk on their way to storage."""

    path: Path
    size_bytes: int
    sha256: str


def file_create(
    *,
    organization: Organization,
    filename: str,
    purpose: str,
    source: BinaryIO | Path | StagedFile,
    expires_at: dt.datetime | None = None,
) -> File:
    """Stores the bytes and makes the row. Reads a stream in chunks, so a file of any size takes little memory.

    Raises: ApiError: 413, the stream is longer than an upload may be. A path is the service's own and has no limit.
    Effects: if the row cannot be written, the bytes are deleted again.
    """
    if isinstance(source, StagedFile):
        return _store(organization, filename, purpose, source, expires_at)
    if isinstance(source, Path):
        return _store(organization, filename, purpose, _measure(source), expires_at)
    with staging_path() as path:
        return _store(organization, filename, purpose, _stage(source, path), expires_at)


def _store(
    organization: Organization, filename: str, purpose: str, staged: StagedFile, expires_at: dt.datetime | None
) -> File:
    identity = file_id()
    key = f"{organization.pk}/files/{identity}"
    storage = get_storage()
    storage.put_file(key, staged.path)
    try:
        return File.objects.create(
            id=identity,
            organization=organization,
            filename=filename,
            purpose=purpose,
            size_bytes=staged.size_bytes,
            sha256=staged.sha256,
            storage_key=key,
            expires_at=expires_at,
        )
    except Exception:
        storage.delete(key)
        raise


@contextmanager
def staging_path() -> Iterator[Path]:
    """A name for a file of the caller's; whatever lies there afterwards is deleted."""
    folder = get_config().staging_dir
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / secrets.token_hex(16)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


class StagedWriter:
    """Writes chunks to `path`, hashing on the way. Raises: ApiError: 413, once more than `limit_bytes` came."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._hash = hashlib.sha256()
        self._file = path.open("xb")

    def write(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)
        if self.size_bytes > self.limit_bytes:
            self.abort()
            raise ApiError(413, f"A file must be at most {self.limit_bytes:,} bytes.", "file_too_large", "file")
        self._hash.update(chunk)
        self._file.write(chunk)

    def finish(self) -> StagedFile:
        self._file.close()
        return StagedFile(path=self.path, size_bytes=self.size_bytes, sha256=self._hash.hexdigest())

    def abort(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


def _stage(source: BinaryIO, path: Path) -> StagedFile:
    writer = StagedWriter(path, get_config().max_upload_bytes)
    while chunk := source.read(CHUNK_BYTES):
        writer.write(chunk)
    return writer.finish()


def _measure(path: Path) -> StagedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return StagedFile(path=path, size_bytes=file.tell(), sha256=digest.hexdigest())


@transaction.atomic
def file_delete(*, file: File) -> None:
    """Makes the file unreachable at once and drops its bytes after the commit. The row stays: batches refer to it."""
    if File.objects.filter(pk=file.pk, deleted_at=None).update(deleted_at=timezone.now()):
        transaction.on_commit(partial(get_storage().delete, file.storage_key))
