"""Files with a lock that shows that they are in use. A process that inherits the open file keeps the lock.

The kernel releases the lock when the last such process has ended or closed the file, even if it was killed.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def open_in_use(path: Path) -> IO[bytes]:
    """Opens a file to append to it, and creates it if necessary. It counts as used until it is closed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()  # it was deleted, by the holder of `locked_if_unused`, before it was locked


@contextmanager
def locked_if_unused(path: Path) -> Iterator[bool]:
    """Yields whether no other process uses the file, which nobody can use during the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
