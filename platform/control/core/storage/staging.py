"""Staging: temporary files on this machine's disk. They are hashed while they are written.

`staging_purge` deletes the temporary files of killed processes.
"""

import hashlib
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.core.storage.backends import incoming_dir

CHUNK_BYTES = 1 << 20
ABANDONED_SECONDS = 24 * 3600.0  # no request or job uses a staged file longer than this


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A complete file in the staging folder.

    The caller of `new_staging_path` must delete a file at that path. `staged_writer` deletes its file at the end of its
    block.
    """

    path: Path
    size_bytes: int
    sha256: str


class StagedWriter:
    """Writes chunks to a new file at `path`, which `discard` deletes."""

    def __init__(self, path: Path, *, limit_bytes: int | None = None) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._hash = hashlib.sha256()
        self._file = path.open("xb")

    def write(self, chunk: bytes) -> None:
        """Raises: ApiError: 413, the file exceeds `limit_bytes`."""
        self.size_bytes += len(chunk)
        if self.limit_bytes is not None and self.size_bytes > self.limit_bytes:
            raise ApiError(413, f"A file must be at most {self.limit_bytes:,} bytes.", "file_too_large", "file")
        self._hash.update(chunk)
        self._file.write(chunk)

    def finish(self) -> StagedFile:
        self._file.close()
        return StagedFile(path=self.path, size_bytes=self.size_bytes, sha256=self._hash.hexdigest())

    def discard(self) -> None:
        """Deletes the file. It can be called at any time and more than once."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def new_staging_path() -> Path:
    folder = get_config().staging_dir
    folder.mkdir(parents=True, exist_ok=True)
    return folder / secrets.token_hex(16)


@contextmanager
def staging_folder() -> Iterator[Path]:
    """Yields an empty folder, which is deleted at the end of the block."""
    folder = new_staging_path()
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def staged_writer(*, limit_bytes: int | None = None) -> Iterator[StagedWriter]:
    """Yields a writer whose file is deleted at the end of the block."""
    writer = StagedWriter(new_staging_path(), limit_bytes=limit_bytes)
    try:
        yield writer
    finally:
        writer.discard()


def measure(path: Path) -> StagedFile:
    """Returns size and hash of an existing file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return StagedFile(path=path, size_bytes=file.tell(), sha256=digest.hexdigest())


def copy_stream(source: BinaryIO, writer: StagedWriter) -> StagedFile:
    while chunk := source.read(CHUNK_BYTES):
        writer.write(chunk)
    return writer.finish()


def staging_purge() -> int:
    """Deletes files that killed processes have left on this machine. Returns: the number of files and folders."""
    config = get_config()
    abandoned = [
        path for folder in (config.staging_dir, incoming_dir(config.storage_dir)) for path in _abandoned_in(folder)
    ]
    for path in abandoned:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return len(abandoned)


def _abandoned_in(folder: Path) -> Iterator[Path]:
    oldest = time.time() - ABANDONED_SECONDS
    for path in folder.glob("*"):
        with suppress(FileNotFoundError):  # the process that wrote the file has deleted it meanwhile
            if path.stat().st_mtime < oldest:
                yield path
