"""Log files of child processes: opened with a lock that shows that they are in use, rotated, and limited in total.

A log is the standard output of a process that never reopens it. Rotation therefore copies the log and truncates it;
lines that the process writes between the two are lost.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import IO

from control.core.settings.config import Config


def open_log(path: Path) -> IO[bytes]:
    """Opens a log to append to it. A process that inherits the file keeps the lock, even if this process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        log = path.open("ab")
        fcntl.flock(log, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(log.fileno()).st_ino:
                return log
        log.close()  # `logs_limit` has deleted the file before it was locked


def logs_limit(config: Config) -> None:
    """Rotates large logs, then deletes the least recently written ones that no process uses if all are too large."""
    folder = config.data_dir / "logs"
    with _locked(folder / ".lock") as is_mine:
        if is_mine:
            for log in list(folder.rglob("*.log")):
                if log.stat().st_size > config.max_log_file_bytes:
                    _rotate(log, config.max_old_log_files)
            _delete_oldest(folder, config.max_logs_bytes)


def _rotate(log: Path, num_old: int) -> None:
    old = [log.with_name(f"{log.name}.{number}") for number in range(1, num_old + 1)]
    for newer, older in reversed(list(pairwise(old))):
        with suppress(FileNotFoundError):
            newer.replace(older)
    if old:
        shutil.copyfile(log, old[0])
    os.truncate(log, 0)


def _delete_oldest(folder: Path, max_bytes: int) -> None:
    stats = [(log, log.stat()) for log in folder.rglob("*.log*")]
    excess = sum(stat.st_size for _, stat in stats) - max_bytes
    for log, stat in sorted(stats, key=lambda item: item[1].st_mtime):
        if excess <= 0:
            return
        with _locked(log) as is_unused:
            if is_unused:
                log.unlink()
                excess -= stat.st_size


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Yields whether no other process has locked the file, which stays locked during the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
