"""Gives the writers of a SQLite database their turns in the order in which they ask, across threads and processes.

SQLite has no such order: a writer that finds the database locked sleeps for up to 0.1 s at a time, while others write.
Here each writer draws a ticket, the next number of a counter in a file beside the database. It locks the file's byte
whose offset is this number. The writer's turn comes when no byte at a lower offset is locked. A writer locks byte 0
while it reads and increments the counter. The kernel releases the locks of a process that is killed.

The locks belong to the open file (F_OFD_SETLK), so that the threads of a process take turns, too. Waiting with a time
limit requires polling, which does not affect the order. Because a frozen process may hold a ticket, a writer does not
wait longer than `MAX_WAIT_SECONDS`. Then it competes for SQLite's own lock, which alone guarantees correctness. A
writer also competes for that lock, without a turn, if the file cannot be opened or locked.
"""

import fcntl
import io
import os
import struct
import time
from contextlib import suppress
from pathlib import Path

MAX_WAIT_SECONDS = 5.0
ARE_AVAILABLE = hasattr(fcntl, "F_OFD_SETLK")  # true on Linux; on other systems, writers take no turns

_POLL_SECONDS = 0.001
_COUNTER_BYTES = 8


class Turn:
    """The turns of one connection, which only one thread uses at a time."""

    def __init__(self, path: Path, *, max_wait_seconds: float) -> None:
        self._path = path
        self._max_wait_seconds = max_wait_seconds
        self._file: io.FileIO | None = None  # open from `take` to `give_back`

    def take(self) -> bool:
        """Waits for this connection's turn, or until the time limit. Returns: whether the turn has come."""
        self.give_back()
        deadline = time.monotonic() + self._max_wait_seconds
        try:
            self._file = io.FileIO(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644), "r+")
            _wait(self._file, deadline)
        except OSError:  # TimeoutError included
            self.give_back()
            return False
        except BaseException:
            self.give_back()
            raise
        return True

    def give_back(self) -> None:
        """Ends this connection's turn, so that the next writer can continue. Does nothing if the connection has no
        turn."""
        if self._file is not None:
            with suppress(OSError):  # the file has no locks if its file system does not support them
                _set_lock(self._file, fcntl.F_UNLCK, 0, 0)  # all bytes; closing is not enough after a fork
            self._file.close()
            self._file = None


def _wait(file: io.FileIO, deadline: float) -> None:
    """Draws a ticket and waits until no lower ticket is left. Raises: TimeoutError."""
    _lock(file, 0, 1, deadline)
    number = 1 + int.from_bytes(os.pread(file.fileno(), _COUNTER_BYTES, 0))
    os.pwrite(file.fileno(), number.to_bytes(_COUNTER_BYTES), 0)
    _lock(file, number, 1, deadline)
    _set_lock(file, fcntl.F_UNLCK, 0, 1)
    _lock(file, 1, number, deadline)


def _lock(file: io.FileIO, first: int, num_bytes: int, deadline: float) -> None:
    """Raises: TimeoutError: another writer still holds one of the bytes at the deadline."""
    while True:
        try:
            return _set_lock(file, fcntl.F_WRLCK, first, num_bytes)
        except (BlockingIOError, PermissionError):  # POSIX allows EAGAIN and EACCES
            if time.monotonic() >= deadline:
                raise TimeoutError from None
        time.sleep(_POLL_SECONDS)


def _set_lock(file: io.FileIO, kind: int, first: int, num_bytes: int) -> None:
    # struct flock: type, whence, start, length, pid (0 is required here), padding
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", kind, os.SEEK_SET, first, num_bytes, 0))
