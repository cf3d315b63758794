"""Log files of child processes, opened with `open_in_use`. They are rotated, and their total size is limited.

A log is the standard output of a process that never reopens it. Rotation therefore copies the log and then truncates
it. Lines that the process writes after the copy and before the truncation are lost.
"""

import os
import shutil
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from control.core.processes.in_use import locked_if_unused
from control.core.settings.config import Config


def logs_limit(config: Config) -> None:
    """Rotates large logs. If all logs together are too large, deletes the least recently written ones that no process
    uses."""
    folder = config.data_dir / "logs"
    with locked_if_unused(folder / ".lock") as is_mine:
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
        with locked_if_unused(log) as is_unused:
            if is_unused:
                log.unlink()
                excess -= stat.st_size
