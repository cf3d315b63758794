"""Marks files as in use, with locks. A process that inherits the open file keeps the lock.

The kernel releases the lock when the last such process has ended or closed the file, even if it was killed.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

MAX_WAIT_SECONDS = 5.0


def open_in_use(path: Path, *, max_wait_seconds: float | None = MAX_WAIT_SECONDS, mode: int = 0o666) -> IO[bytes]:
    """Opens a file to append to it, and creates it with this mode if necessary. The file is in use until it is closed.

    Waits while another process is in the block of `locked_if_unused`.

    Args: max_wait_seconds: None waits without limit. An untrusted process that inherits or opens the file could lock it
        for ever, so use None only if there is no such process.
    Raises: TimeoutError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = _open(path, mode)
        _lock_shared(file, max_wait_seconds)
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()  # a process in the block of `locked_if_unused` deleted the file before it was locked


def _open(path: Path, mode: int) -> IO[bytes]:
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, mode))


def _lock_shared(file: IO[bytes], max_wait_seconds: float | None) -> None:
    if max_wait_seconds is None:
        fcntl.flock(file, fcntl.LOCK_SH)
        return
    deadline = time.monotonic() + max_wait_seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                file.close()
                raise TimeoutError(f"{file.name} was locked for {max_wait_seconds} s") from None
            time.sleep(0.01)
        else:
            return


@contextmanager
def locked_alone(path: Path) -> Iterator[None]:
    """Waits until no other process is in a `locked_alone` block with this path, and then runs the block.

    A missing file is created with permissions for this user only. Only trusted processes may be able to open the file,
    because any of them can make the others wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with _open(path, 0o600) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    yield
                    return


@contextmanager
def locked_if_unused(path: Path) -> Iterator[bool]:
    """Yields True if no other process uses the file, and then keeps the file locked during the block.

    Yields False if another process uses the file. A missing file is created with permissions for this user only.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _open(path, 0o600) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
