"""Object storage: a folder in the embedded stack, S3 in production. Keys are relative paths with `/`.

`put_file` is atomic: a reader never sees a partial object. A folder is only a prefix that several keys share, so
`put_folder` is not atomic. Write the prefix to the database only after `put_folder` has returned.
"""

import io
import os
import secrets
import shutil
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

import boto3
from botocore.config import Config as BotoConfig
from botocore.exceptions import BotoCoreError, ClientError

from control.core.settings.config import Config, get_config

READ_BYTES = 1 << 20
MAX_RESUMES = 5  # how often one read is resumed after the connection was lost


class StorageError(Exception):
    """The base class of storage errors."""


class InvalidKey(StorageError, ValueError):
    """The key is absolute, empty, or contains `..`."""


class ObjectMissing(StorageError, LookupError):
    """No object has this key."""


class Storage(Protocol):
    def put_file(self, key: str, path: Path) -> None: ...
    def put_folder(self, prefix: str, path: Path) -> None: ...
    def get_file(self, key: str, path: Path) -> None:
        """Copies the object to `path` and creates its parent folder if needed. Raises: ObjectMissing."""

    def get_folder(self, prefix: str, path: Path) -> None:
        """Copies all objects below `prefix` into the folder `path`. Raises: ObjectMissing: there are none."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Returns the size in bytes of each object below `prefix`, by its name relative to the prefix."""

    def some(self, prefix: str, *, limit: int) -> list[str]:
        """Returns the names of up to `limit` objects below `prefix`, at most 1,000, without listing the others."""

    def open(self, key: str, *, start: int = 0) -> BinaryIO:
        """Opens the object as a stream from byte `start` on, which must be within the object. Raises: ObjectMissing."""

    def delete(self, key: str) -> None:
        """Deletes one object. A missing object is not an error."""

    def delete_folder(self, prefix: str) -> None:
        """Deletes all objects below `prefix`; if there are none, that is not an error."""

    def exists(self, key: str) -> bool: ...


def get_storage() -> Storage:
    config = get_config()
    return S3Storage(config) if config.s3_bucket else FolderStorage(config.storage_dir)


def checked_key(key: str) -> str:
    parts = PurePosixPath(key).parts
    if not parts or key.startswith("/") or ".." in parts or "\\" in key or "\0" in key:
        raise InvalidKey(f"a key must be a relative path without '..', got {key!r}")
    return "/".join(parts)


def incoming_dir(root: Path) -> Path:
    """Returns the folder for incomplete copies. It is below `root`, because a rename must stay within a file system."""
    return root / ".incoming"


class FolderStorage:
    def __init__(self, root: Path) -> None:
        self.root = root

    def _path(self, key: str) -> Path:
        return self.root / checked_key(key)

    def put_file(self, key: str, path: Path) -> None:
        target = self._path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = incoming_dir(self.root) / secrets.token_hex(16)
        temporary.parent.mkdir(exist_ok=True)
        try:
            with path.open("rb") as source, temporary.open("xb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())  # the row with the key survives a power cut, so the bytes must survive it, too
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def put_folder(self, prefix: str, path: Path) -> None:
        for file, name in _files_below(path):
            self.put_file(f"{prefix}/{name}", file)

    def get_file(self, key: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.open(key) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)

    def get_folder(self, prefix: str, path: Path) -> None:
        folder = self._path(prefix)
        if not folder.is_dir():
            raise ObjectMissing(f"no objects below {prefix!r}")
        for _, name in _files_below(folder):
            self.get_file(f"{prefix}/{name}", path / name)

    def sizes(self, prefix: str) -> dict[str, int]:
        return {name: file.stat().st_size for file, name in _files_below(self._path(prefix))}

    def some(self, prefix: str, *, limit: int) -> list[str]:
        folder = self._path(prefix)
        found = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names if name[0] != ".")
        return [path.relative_to(folder).as_posix() for path in islice(found, limit)]

    def open(self, key: str, *, start: int = 0) -> BinaryIO:
        try:
            file = self._path(key).open("rb")
        except (FileNotFoundError, IsADirectoryError) as error:
            raise ObjectMissing(f"no object {key!r}") from error
        file.seek(start)
        return file

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def delete_folder(self, prefix: str) -> None:
        shutil.rmtree(self._path(prefix), ignore_errors=True)

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()


def _files_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields files and their names relative to `folder`, without hidden files.

    Earlier releases left temporary files (`.name.random`) beside the objects when their processes were killed.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            yield path, path.relative_to(folder).as_posix()


class S3Storage:
    def __init__(self, config: Config) -> None:
        assert config.s3_bucket is not None
        self.bucket = config.s3_bucket
        self._client = _s3_client(config.s3_endpoint_url)

    def put_file(self, key: str, path: Path) -> None:
        self._client.upload_file(str(path), self.bucket, checked_key(key))

    def put_folder(self, prefix: str, path: Path) -> None:
        for file, name in _files_below(path):
            self.put_file(f"{prefix}/{name}", file)

    def get_file(self, key: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._client.download_file(self.bucket, checked_key(key), str(path))
        except ClientError as error:
            raise _translated(error, key) from error

    def get_folder(self, prefix: str, path: Path) -> None:
        names = self.sizes(checked_key(prefix))
        if not names:
            raise ObjectMissing(f"no objects below {prefix!r}")
        for name in names:
            self.get_file(f"{prefix}/{name}", path / checked_key(name))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Returns the sizes as in `Storage`. The prefix "" lists the whole bucket."""
        base = f"{prefix}/" if prefix else ""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=base)
        items = [item for page in pages for item in page.get("Contents", [])]
        return {str(item["Key"]).removeprefix(base): int(item["Size"]) for item in items}

    def some(self, prefix: str, *, limit: int) -> list[str]:
        base = f"{checked_key(prefix)}/"
        page = self._client.list_objects_v2(Bucket=self.bucket, Prefix=base, MaxKeys=limit)
        return [str(item["Key"]).removeprefix(base) for item in page.get("Contents", [])]

    def open(self, key: str, *, start: int = 0) -> BinaryIO:
        try:
            reader = _S3Reader(self._client, self.bucket, checked_key(key), start)
        except ClientError as error:
            raise _translated(error, key) from error
        return io.BufferedReader(reader, READ_BYTES)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self.bucket, Key=checked_key(key))

    def delete_folder(self, prefix: str) -> None:
        for name in self.sizes(checked_key(prefix)):
            self.delete(f"{prefix}/{name}")

    def exists(self, key: str) -> bool:
        try:
            self._client.head_object(Bucket=self.bucket, Key=checked_key(key))
        except ClientError as error:
            if isinstance(_translated(error, key), ObjectMissing):
                return False
            raise
        return True


class _S3Reader(io.RawIOBase):
    """Reads an object as a stream. After a lost connection, it continues with the same version of the object.

    botocore retries requests by itself, but not responses that are cut off after their headers.
    """

    def __init__(self, client: Any, bucket: str, key: str, start: int) -> None:
        self._client = client
        self._object = {"Bucket": bucket, "Key": key}
        response = client.get_object(**self._object, **({"Range": f"bytes={start}-"} if start else {}))
        self._body, self._etag = response["Body"], response["ETag"]
        self._position, self._size_bytes = start, start + response["ContentLength"]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises: BotoCoreError: the connection was lost more than `MAX_RESUMES` times."""
        for is_last_try in (*[False] * MAX_RESUMES, True):
            try:
                chunk = self._body.read(len(buffer))
            except BotoCoreError:
                if is_last_try:
                    raise
                self._resume()
            else:
                buffer[: len(chunk)] = chunk
                self._position += len(chunk)
                return len(chunk)
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        self._body.close()
        super().close()

    def _resume(self) -> None:
        self._body.close()
        rest = f"bytes={self._position}-{self._size_bytes - 1}"
        self._body = self._client.get_object(**self._object, Range=rest, IfMatch=self._etag)["Body"]


@lru_cache(maxsize=4)
def _s3_client(endpoint_url: str | None) -> Any:  # boto3 creates its client classes at run time
    timeouts = BotoConfig(connect_timeout=5, read_timeout=60, retries={"max_attempts": 5, "mode": "standard"})
    return boto3.client("s3", endpoint_url=endpoint_url, config=timeouts)


def _translated(error: ClientError, key: str) -> Exception:
    code = error.response.get("Error", {}).get("Code")
    return ObjectMissing(f"no object {key!r}") if code in ("404", "NoSuchKey", "NotFound") else error
