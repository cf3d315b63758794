"""This machine's copies of models from S3, speculators and adapters.

If all copies together exceed a limit (`SLIPSTREAM_NODE_CACHE`), the least recently used are deleted.

In the folder `models` of the data folder, for the model, speculator or adapter with the id ID:
    ID         a complete copy: it appears and disappears by a rename, so that it is never partial
    ID.lock    locked briefly, while a use begins or the copy is deleted; its modification time is the time of the
               last use
    ID.lock.*  one file for each use, locked until the last process that inherited the file has ended. The file
               `ID.lock.fetch` is locked while a process fetches the copy; other processes wait for this lock
    .ID.*      a partial copy, which is being fetched or deleted

An engine inherits only the file of its own use, and its operating-system user can open none of the other lock files. An
engine that a hostile model has taken over can therefore lock nothing that another process waits for.

A folder that an operator has put into `models` has no lock file and is left alone.
"""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from control.core.processes.in_use import locked_alone, locked_if_unused, open_in_use
from control.core.settings.config import Config

# Number of seconds for which a new copy is not deleted, so that the process that will use the copy has time to start.
RECENT_SECONDS = 600.0

_LOCK = ".lock"
_PRIVATE = 0o600  # whoever can open a file can lock it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    folder: Path
    num_bytes: int
    used_at: float


def copy_folder(config: Config, model_id: str) -> Path:
    return _all_copies(config) / model_id


def use_copy(folder: Path) -> IO[bytes]:
    """Begins a use of the copy, which may have been deleted before the call.

    Returns: a file that prevents the deletion of the copy as long as any process has the file open.
    """
    with open_in_use(_lock_path(folder), max_wait_seconds=None, mode=_PRIVATE) as lock:
        os.utime(lock.fileno())
        os.fchmod(lock.fileno(), _PRIVATE)  # earlier releases created it with another mode
        use = folder.with_name(f"{folder.name}{_LOCK}.{secrets.token_hex(8)}")
        return open_in_use(use, mode=_PRIVATE)


def use_if_copy(config: Config, folder: Path) -> IO[bytes] | None:
    """Calls `use_copy` if the model's folder is a copy. Other folders are never deleted; for them, returns None."""
    is_copy = folder.parent == _all_copies(config) and _lock_path(folder).exists()
    return use_copy(folder) if is_copy else None


@contextmanager
def only_fetcher(folder: Path) -> Iterator[bool]:
    """Lets one process at a time fetch a copy, while the caller uses it. Yields whether the copy is still missing."""
    with locked_alone(folder.with_name(f"{folder.name}{_LOCK}.fetch")):
        yield not folder.is_dir()


def complete_copy(partial: Path, folder: Path) -> None:
    """Renames a complete partial copy to `folder`, unless `folder` exists already.

    The files are synced to the disk before the rename, so that a power cut leaves no copy with empty files.
    """
    for path in partial.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    try:
        partial.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # a process of an earlier release has fetched it, too
            raise


def partial_folder(folder: Path) -> Path:
    """Returns a new path for a partial copy, which is either being fetched, to become `folder`, or being deleted."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")


def delete_copy(folder: Path) -> None:
    """Renames the copy and then deletes it, so that a process killed meanwhile leaves no apparently complete copy."""
    if folder.is_dir():
        doomed = folder.rename(partial_folder(folder))
        shutil.rmtree(doomed, ignore_errors=True)


def model_copies_limit(config: Config, *, reserved_bytes: int = 0) -> None:
    """Deletes what killed processes have left, then the least recently used copies until the rest fits the limit.

    Args: reserved_bytes: size of the copy that is fetched next.
    """
    folder = _all_copies(config)
    with locked_if_unused(folder / ".limit") as is_mine:
        if not is_mine:
            return
        (folder / ".limit").chmod(_PRIVATE)  # earlier releases created it with another mode
        copies = [_tidied(path.with_name(path.name.removesuffix(_LOCK))) for path in folder.glob(f"[!.]*{_LOCK}")]
        excess = reserved_bytes + sum(copy.num_bytes for copy in copies) - config.node_cache
        for copy in sorted(copies, key=lambda copy: copy.used_at):
            if (excess > 0 or copy.num_bytes == 0) and _delete_if_unused(copy.folder):
                excess -= copy.num_bytes


def _tidied(folder: Path) -> _Copy:
    """Returns the size of a copy and the time of its last use. A copy in use has the current time.

    If no process uses the copy, deletes its partial folders, because only users of the copy create them.
    """
    lock = _lock_path(folder)
    with _locked_if_unused(folder) as is_unused:
        if is_unused:
            for partial in folder.parent.glob(f".{folder.name}.*"):
                shutil.rmtree(partial, ignore_errors=True)
        else:
            os.utime(lock)
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return _Copy(folder=folder, num_bytes=num_bytes, used_at=lock.stat().st_mtime)


def _delete_if_unused(folder: Path) -> bool:
    lock = _lock_path(folder)
    with _locked_if_unused(folder) as is_unused:
        if not is_unused or lock.stat().st_mtime > time.time() - RECENT_SECONDS:
            return False
        delete_copy(folder)
        lock.unlink()
    return True


@contextmanager
def _locked_if_unused(folder: Path) -> Iterator[bool]:
    """Yields whether no process uses the copy. No use can begin during the block. Deletes the files of ended uses."""
    with locked_if_unused(_lock_path(folder)) as is_unlocked:
        uses = list(folder.parent.glob(f"{folder.name}{_LOCK}.*")) if is_unlocked else []
        yield is_unlocked and sum(map(_deleted_if_ended, uses)) == len(uses)


def _deleted_if_ended(use: Path) -> bool:
    with locked_if_unused(use) as has_ended:
        if has_ended:
            use.unlink()
    return has_ended


def _all_copies(config: Config) -> Path:
    return config.data_dir.resolve() / "models"


def _lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_LOCK}")
